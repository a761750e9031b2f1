"""The full softmax: torch's own cross-entropy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from logitsieve.api.errors import InvalidRequest
from logitsieve.training import FullSoftmax
from tests.training.loss_kit import doubles, full_cross_entropy

D, V, B = 6, 40, 9
TARGET = torch.tensor([3, 0, -100, 39, 3, 5, 6, 7, 8])
SEVERAL = torch.stack([TARGET, TARGET.roll(1), torch.full((B,), 4)], 1)


def made(**options: Any) -> FullSoftmax:
    torch.manual_seed(2)
    return FullSoftmax(D, V, dtype=torch.float64, **options)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_it_is_the_cross_entropy_of_torch(reduction: Any) -> None:
    criterion, hidden = made(reduction=reduction), doubles(B, D, seed=1).requires_grad_()
    weight, bias = criterion.classes.weight, criterion.classes.bias
    assert bias is not None
    expected = cross_entropy(linear(hidden, weight, bias.view(-1)), TARGET, reduction=reduction)
    loss = criterion(hidden, TARGET)
    torch.testing.assert_close(loss, expected)
    weights = doubles(*loss.shape, seed=4)
    inputs = [hidden, weight, bias]
    got, wanted = (torch.autograd.grad(x, inputs, weights) for x in (loss, expected))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("target", [TARGET, SEVERAL], ids=["one", "several"])
@pytest.mark.parametrize("options", [{}, {"scale": 5.0}, {"absolute": True}, {"bias": False}])
def test_every_law_and_several_targets(target: Tensor, options: dict[str, Any]) -> None:
    criterion, hidden = (made(reduction="sum", **options), doubles(B, D, seed=1).requires_grad_())
    inputs = [hidden, *criterion.parameters()]
    expected = full_cross_entropy(criterion, hidden, target).sum()
    got, wanted = (torch.autograd.grad(x, inputs) for x in (criterion(hidden, target), expected))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_sparse_gradients_are_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        made(sparse=True)
    assert caught.value.field == "sparse"
