"""NCE by its formula, term by term, and that it learns a normalised softmax without normalising."""

from __future__ import annotations

from math import log

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from logitsieve.training import NCE
from tests.training.loss_kit import doubles

D, V, M = 4, 12, 30
COUNTS = torch.arange(V, 0, -1.0)


@pytest.mark.parametrize(
    "target", [torch.tensor([2, 0]), torch.tensor([[2, 4], [0, -100]])], ids=["one", "several"]
)
def test_each_term_is_a_binary_choice(target: Tensor) -> None:
    criterion = NCE(D, V, COUNTS, n_sampled=M, dtype=torch.float64, reduction="none", sparse=False)
    hidden = doubles(2, D, seed=1).requires_grad_()
    noise = criterion.distribution.draw(criterion.random.next().uniforms(M))
    assert len(set(noise.tolist())) < M
    criterion.random.step = 0
    log_mq = (M * COUNTS / COUNTS.sum()).log().double()
    y_BV = criterion.logits(hidden) - log_mq
    several = target.view(2, -1)
    mine = [row[row != -100] for row in several]
    data = torch.stack([logsigmoid(y_BV[b, ids]).mean() for b, ids in enumerate(mine)])
    expected = -data - logsigmoid(-y_BV[:, noise]).sum(1)
    losses = criterion(hidden, target)
    torch.testing.assert_close(losses, expected)
    inputs = [hidden, *criterion.parameters()]
    got, wanted = (torch.autograd.grad(x.sum(), inputs) for x in (losses, expected))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_biases_start_where_z_is_one() -> None:
    criterion = NCE(D, V, COUNTS)
    assert criterion.classes.bias is not None
    torch.testing.assert_close(criterion.classes.bias.detach(), torch.full((V, 1), -log(V)))
    z = criterion.logits(torch.zeros(1, D)).exp().sum()
    torch.testing.assert_close(z, torch.ones(()))


def test_it_learns_the_frequencies_and_a_z_of_one() -> None:
    criterion = NCE(1, V, n_sampled=200, dtype=torch.float64)
    frequencies = COUNTS.double() / COUNTS.sum()
    optimizer = torch.optim.Adagrad(criterion.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(0)
    zeros = torch.zeros(500, 1, dtype=torch.float64)
    for _ in range(150):
        optimizer.zero_grad()
        criterion(
            zeros, torch.multinomial(frequencies, 500, replacement=True, generator=generator)
        ).backward()
        optimizer.step()
    learnt = criterion.logits(zeros[:1]).detach().exp()[0]
    torch.testing.assert_close(learnt, frequencies, atol=0.015, rtol=0.1)
    assert abs(float(learnt.sum()) - 1) < 0.05
