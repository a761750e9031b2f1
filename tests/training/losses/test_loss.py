"""The base of the losses, by the full softmax; test_contract.py has what holds for every loss."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from logitsieve.api.errors import InvalidRequest
from logitsieve.training import FullSoftmax
from logitsieve.training.autograd.batch import Targets
from logitsieve.training.losses.loss import full_losses
from tests.training.loss_kit import doubles

D, V = 4, 9


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"in_features": 0}, "in_features"),
        ({"n_classes": 1}, "n_classes"),
        ({"reduction": "average"}, "reduction"),
        ({"scale": 0.0}, "scale"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{field}: got") as caught:
        FullSoftmax(**{"in_features": D, "n_classes": V, **options})
    assert caught.value.field == field


def test_a_loss_over_several_targets_is_its_formula() -> None:
    x_BV = doubles(2, V)
    targets = Targets(torch.tensor([0, 0, 1]), torch.tensor([2, 7, 3]), 2, False)
    expected = x_BV.logsumexp(1) - torch.stack([x_BV[0, [2, 7]].mean(), x_BV[1, 3]])
    torch.testing.assert_close(full_losses(x_BV, targets), expected)


def test_the_full_loss_holds_few_logits_and_is_that_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    criterion, hidden = FullSoftmax(D, V, dtype=torch.float64), doubles(7, D, seed=1)
    target = torch.tensor([0, 8, -100, 3, 3, 1, -100])
    expected = cross_entropy(criterion.logits(hidden), target)
    monkeypatch.setattr("logitsieve.training.losses.loss._CHUNK", 2 * V)  # two rows at a time
    torch.testing.assert_close(criterion.full_loss(hidden, target), expected.detach())


@pytest.mark.parametrize("scale", [None, 3.0])
def test_an_export_is_the_softmax_of_what_the_loss_sees(scale: float | None) -> None:
    criterion, hidden = FullSoftmax(D, V, scale=scale), doubles(5, D).float()
    exported = criterion.export()
    weight, bias = exported
    assert exported.normalized_contexts == (scale is not None)
    context = normalize(hidden, dim=-1) if exported.normalized_contexts else hidden
    torch.testing.assert_close(context @ weight.T + bias, criterion.logits(hidden).detach())


def test_absolute_logits_are_not_exported() -> None:
    with pytest.raises(InvalidRequest, match="absolute logits"):
        FullSoftmax(D, V, absolute=True, bias=False).export()
