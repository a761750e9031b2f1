"""EXP: its estimate of Z is Z, whatever is drawn; its gradient is so in the mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from logitsieve.training import ExpSoftmax
from logitsieve.training.autograd.batch import Targets
from tests.training.loss_kit import doubles, full_cross_entropy

D, V = 4, 30
SEVERAL = torch.tensor([[3, 1, 2], [0, -100, -100], [-100] * 3, [29, 8, -100]])


def made(n_sampled: int, **options: Any) -> ExpSoftmax:
    criterion = ExpSoftmax(
        D, V, n_sampled=n_sampled, dtype=torch.float64, reduction="none", sparse=False, **options
    )
    criterion.classes.weight.data = doubles(V, D, seed=6)
    return criterion


@pytest.mark.parametrize("n_sampled", [1, 2, 50])
@pytest.mark.parametrize(
    "target", [torch.tensor([3, 0, -100, 29]), SEVERAL], ids=["one", "several"]
)
@pytest.mark.parametrize("options", [{}, {"scale": 6.0}, {"absolute": True}])
def test_every_draw_gives_the_full_loss(
    n_sampled: int, target: Tensor, options: dict[str, Any]
) -> None:
    criterion, hidden = made(n_sampled, **options), doubles(4, D, seed=1)
    expected = full_cross_entropy(criterion, hidden, target).detach()
    for _ in range(5):
        torch.testing.assert_close(criterion(hidden, target).detach(), expected)


def test_the_gradient_is_the_full_one_in_the_mean() -> None:
    rows = 20_000
    criterion, hidden = made(3), doubles(1, D, seed=1).expand(rows, D).clone().requires_grad_()
    target = torch.full((rows,), 4)
    (each,) = torch.autograd.grad(criterion(hidden, target).sum(), hidden)
    (exact,) = torch.autograd.grad(
        full_cross_entropy(criterion, hidden[:1], target[:1]).sum(), hidden
    )
    error = (each.mean(0) - exact[0]).abs()
    assert bool((error < 4 * each.std(0) / rows**0.5).all())
    assert bool((each.std(0) > 0.01).all())


def test_draws_follow_the_softmax_without_the_targets() -> None:
    criterion, hidden = made(100_000), doubles(1, D, seed=1)
    targets = Targets(torch.tensor([0, 0]), torch.tensor([3, 7]), 1, False)
    drawn = criterion.propose(hidden, targets, criterion.random.next())
    x_V = criterion.logits(hidden).detach()[0]
    x_V[[3, 7]] = -torch.inf
    expected = x_V.softmax(0) * 100_000
    counts = torch.bincount(drawn.ids, minlength=V)
    assert counts[[3, 7]].tolist() == [0, 0]
    kept = expected > 5
    chi = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    degrees = int(kept.sum()) - 1
    assert float(chi) < degrees + 4 * (2 * degrees) ** 0.5


def test_rows_in_chunks_draw_what_they_would_draw_together() -> None:
    targets = Targets(torch.arange(5), torch.arange(5), 5, True)
    hidden, criterion = doubles(5, D, seed=1), made(4)
    step = criterion.random.next()
    whole = criterion.propose(hidden, targets, step)
    criterion.chunk = 2 * V
    parts = criterion.propose(hidden, targets, step)
    assert torch.equal(whole.ids, parts.ids)
    torch.testing.assert_close(whole.log_weights, parts.log_weights)
