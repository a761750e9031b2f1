from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from logitsieve.training import ChunkedSoftmax, FullSoftmax
from tests.refusals import refused
from tests.training.loss_kit import doubles, full_cross_entropy
from tests.training.test_contract import Watch

D, V, B = 6, 40, 9
KINDS = pytest.mark.parametrize("kind", [FullSoftmax, ChunkedSoftmax])
TARGET = torch.tensor([3, 0, -100, 39, 3, 5, 6, 7, 8])
SEVERAL = torch.stack([TARGET, TARGET.roll(1), torch.full((B,), 4)], 1)


def made(kind: type[FullSoftmax], **options: Any) -> FullSoftmax:
    torch.manual_seed(2)
    return kind(D, V, dtype=torch.float64, **options)


@KINDS
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("target", [TARGET, SEVERAL], ids=["one", "several"])
@pytest.mark.parametrize("options", [{}, {"scale": 5.0}, {"absolute": True}, {"bias": False}])
def test_it_is_the_cross_entropy_of_torch(
    kind: type[FullSoftmax], reduction: str, target: Tensor, options: dict[str, Any]
) -> None:
    criterion = made(kind, reduction=reduction, **options)
    hidden_states = doubles(B, D, seed=1).requires_grad_()
    inputs, loss = [hidden_states, *criterion.parameters()], criterion(hidden_states, target)
    each = full_cross_entropy(criterion, hidden_states, target)
    kept = (target.view(B, -1) != -100).any(1).sum()
    expected = {"mean": each.sum() / kept, "sum": each.sum(), "none": each}[reduction]
    torch.testing.assert_close(loss, expected)
    weights = doubles(*loss.shape, seed=4)
    got, wanted = (torch.autograd.grad(x, inputs, weights) for x in (loss, expected))
    torch.testing.assert_close(got, wanted)


def test_chunked_holds_few_logits_and_gives_its_gradients_once() -> None:
    criterion, hidden_states = ChunkedSoftmax(4, 1000), doubles(64, 4).float().requires_grad_()
    with Watch(criterion.parameters()) as watch:
        criterion(hidden_states, torch.arange(64)).backward()
    assert max(shape.numel() for shape in watch.shapes) == 32 * 1000
    hidden_states = doubles(B, D, seed=1).requires_grad_()
    loss = made(ChunkedSoftmax)(hidden_states, TARGET)
    torch.autograd.grad(loss, [hidden_states], retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(loss, [hidden_states])


@KINDS
def test_sparse_gradients_are_refused(kind: type[FullSoftmax]) -> None:
    with refused("sparse"):
        made(kind, sparse=True)


def test_the_full_loss_holds_few_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    criterion, hidden_states = FullSoftmax(D, V, dtype=torch.float64), doubles(7, D, seed=1)
    target = torch.tensor([0, 8, -100, 3, 3, 1, -100])
    expected = cross_entropy(criterion.logits(hidden_states), target)
    # Two rows at a time.
    monkeypatch.setattr("logitsieve.training.losses.loss.LOGITS_AT_ONCE", 2 * V)
    torch.testing.assert_close(criterion.full_loss(hidden_states, target), expected.detach())
