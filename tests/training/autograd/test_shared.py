"""One set of candidates for all rows: the list of classes touched, and the loss in place."""

import pytest
import torch

from logitsieve.training.autograd.batch import SharedCandidates, Targets
from logitsieve.training.autograd.classes import ClassWeights, LogitForm
from logitsieve.training.autograd.shared import merge_classes, merged_logits, normalise
from tests.training.loss_kit import doubles

SEVERAL = Targets(torch.tensor([0, 0, 1, 2]), torch.tensor([7, 1, 9, 3]), 3, False)
ONE = Targets(torch.arange(3), torch.tensor([7, 9, 7]), 3, True)
TARGETS = pytest.mark.parametrize("targets", [ONE, SEVERAL], ids=["one", "several"])
DRAWN = SharedCandidates(torch.tensor([7, 2, 7, 3]), torch.tensor([0.3, 0.1, 0.3, -1.0]).double())
NONE = SharedCandidates(torch.empty(0, dtype=torch.int64), torch.empty(0).double())


@TARGETS
@pytest.mark.parametrize("drawn", [DRAWN, NONE], ids=["drawn", "none"])
def test_every_class_is_listed_once(targets: Targets, drawn: SharedCandidates) -> None:
    merged = merge_classes(targets, drawn)
    count = len(merged.log_weights)
    assert merged.ids[:count].tolist() == sorted(set(drawn.ids.tolist()))
    others = set(targets.classes.tolist()) - set(drawn.ids.tolist())
    assert merged.ids[count:].tolist() == sorted(others)
    assert torch.equal(merged.ids[merged.slots], targets.classes)
    is_hit = torch.isin(targets.classes, drawn.ids)
    assert torch.equal(merged.hits, is_hit.nonzero()[:, 0])


def test_duplicates_add_up_and_targets_slice_and_share() -> None:
    merged = merge_classes(ONE, DRAWN)
    expected = torch.tensor([0.1, 0.3, -1.0]).double()
    expected[2], expected[1] = expected[1].exp().mul(2).log(), -1.0
    torch.testing.assert_close(merged.log_weights, expected)
    targets = Targets(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([4, 5, 6, 7, 8]), 3, False)
    part = targets.slice(1, 3)
    assert (part.rows.tolist(), part.classes.tolist(), part.count) == ([0, 1, 1], [6, 7, 8], 2)
    assert part.shares(torch.float64).tolist() == [1, 0.5, 0.5]
    assert part.sums(torch.tensor([1.0, 2.0, 4.0])).tolist() == [1, 6]
    assert part.most(torch.tensor([1.0, 2.0, 4.0])).tolist() == [1, 4]


@TARGETS
def test_the_gradient_in_the_logits_is_autograds(targets: Targets) -> None:
    x_BC, x_P = doubles(3, 5, seed=1), doubles(len(targets.rows), seed=2)
    x_BC[1, 3] = -torch.inf  # masked
    leaves = x_BC.clone().requires_grad_(), x_P.clone().requires_grad_()
    rows = [torch.cat([leaves[0][row], leaves[1][targets.rows == row]]) for row in range(3)]
    mean_B = targets.sums(leaves[1] * targets.shares(torch.float64))
    expected = torch.stack([row.logsumexp(0) for row in rows]) - mean_B
    torch.testing.assert_close(normalise(x_BC, x_P, targets), expected.detach())
    gradients = torch.autograd.grad(expected.sum(), leaves)
    torch.testing.assert_close((x_BC, x_P), gradients)


@pytest.mark.parametrize("scale", [None, 5.0])
def test_merged_logits_are_those_of_the_rows_listed(scale: float | None) -> None:
    classes = ClassWeights(11, 6, bias=scale is None, sparse=True, dtype=torch.float64)
    if classes.bias is not None:
        classes.bias.data.copy_(doubles(11, 1, seed=3))
    hidden, merged = doubles(3, 6, seed=4), merge_classes(SEVERAL, DRAWN)
    x_BC, x_P = merged_logits(hidden, classes, LogitForm(scale=scale), merged, SEVERAL)
    weight = classes.weight if scale is None else torch.nn.functional.normalize(classes.weight)
    x_BV = hidden @ weight.T + (0 if classes.bias is None else classes.bias.view(-1))
    torch.testing.assert_close(x_BC, x_BV[:, [2, 3, 7]])
    torch.testing.assert_close(x_P, x_BV[SEVERAL.rows, SEVERAL.classes])
    x_BC.sum().backward()  # type: ignore[no-untyped-call]
    assert classes.weight.grad is not None
    assert classes.weight.grad.coalesce().indices()[0].tolist() == merged.ids.sort().values.tolist()
