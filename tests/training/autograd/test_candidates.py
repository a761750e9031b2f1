from typing import Any

import pytest
import torch
from torch import Tensor

from logitsieve.training import SampledSoftmax, SoftmaxLoss
from logitsieve.training.autograd.batch import (
    Candidates,
    RaggedCandidates,
    SharedCandidates,
    read_batch,
)
from logitsieve.training.autograd.candidates import ragged_losses, torch_losses
from tests.training.loss_kit import doubles, full_cross_entropy, given, gradient

D, V = 6, 11
ONE = torch.tensor([3, 0, -100, 10, 3])
SEVERAL = torch.tensor([[3, 1, -100], [0, 0, 5], [-100, -100, -100], [10, 9, 8], [-100, 3, -100]])
TARGETS = pytest.mark.parametrize("target", [ONE, SEVERAL], ids=["one", "several"])
FORMS = pytest.mark.parametrize(
    "form",
    [{}, {"bias": False}, {"scale": 5.0}, {"absolute": True}, {"scale": 5.0, "absolute": True}],
)


def as_ragged(shared: SharedCandidates, rows: int) -> RaggedCandidates:
    offsets = torch.arange(0, rows * len(shared.ids) + 1, len(shared.ids))
    return RaggedCandidates(offsets, shared.ids.repeat(rows), shared.log_weights.repeat(rows))


def rows_of(target: Tensor) -> int:
    return int((target.view(5, -1) != -100).any(1).sum())


def loss_over(candidates: Candidates, form: dict[str, Any], **common: Any) -> SampledSoftmax:
    torch.manual_seed(3)
    criterion = given(candidates, D, V, **{"dtype": torch.float64, **common, **form})
    if criterion.classes.bias is not None:
        criterion.classes.bias.data.copy_(doubles(V, 1, seed=8))
    return criterion


def run(criterion: SoftmaxLoss, hidden_states: Tensor, target: Tensor) -> list[Tensor]:
    """[loss, gradient in hidden_states, in weight, in bias if there is one], dense."""
    hidden_states = hidden_states.clone().requires_grad_()
    criterion.zero_grad()
    loss = criterion(hidden_states, target)
    loss.backward()
    gradients = [gradient(each).to_dense() for each in (hidden_states, *criterion.parameters())]
    return [loss.detach(), *gradients]


def assert_same(left: list[Tensor], right: list[Tensor], tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)


EVERYTHING = SharedCandidates(torch.arange(V), torch.zeros(V, dtype=torch.float64))
# Duplicates, ids that are targets, weights that matter.
SOME = SharedCandidates(torch.tensor([7, 3, 7, 0, 2, 10]), doubles(6, seed=5))


@pytest.mark.parametrize("ragged", [False, True])
@TARGETS
@FORMS
def test_all_classes_are_the_softmax(form: dict[str, Any], target: Tensor, ragged: bool) -> None:
    candidates = as_ragged(EVERYTHING, rows_of(target)) if ragged else EVERYTHING
    criterion, hidden_states = loss_over(candidates, form), doubles(5, D, seed=1)
    wanted = hidden_states.clone().requires_grad_()
    losses = full_cross_entropy(criterion, wanted, target)
    (losses.sum() / rows_of(target)).backward()  # type: ignore[no-untyped-call]
    expected = [losses.detach().sum() / rows_of(target), gradient(wanted)]
    expected += [gradient(each).to_dense() for each in criterion.parameters()]
    assert_same(run(criterion, hidden_states, target), expected)


@TARGETS
@FORMS
def test_ragged_equals_shared_of_equal_candidates(form: dict[str, Any], target: Tensor) -> None:
    hidden_states = doubles(5, D, seed=1)
    shared = run(loss_over(SOME, form), hidden_states, target)
    assert_same(
        shared, run(loss_over(as_ragged(SOME, rows_of(target)), form), hidden_states, target)
    )


@TARGETS
@FORMS
def test_the_kernel_equals_the_form_in_torch(form: dict[str, Any], target: Tensor) -> None:
    candidates = as_ragged(SOME, rows_of(target))
    criterion = loss_over(candidates, form)
    for parameter in criterion.parameters():
        parameter.data[7] = 0  # a logit of 0, where |x| has a corner
    batch = read_batch(doubles(5, D, seed=1), target, D, V, -100)
    hidden_states = criterion.prepare(batch.hidden_states).requires_grad_()
    inputs = [hidden_states, *criterion.parameters()]
    terms = criterion.classes, batch.targets, candidates
    kernel, plain = ragged_losses(hidden_states, *terms), torch_losses(hidden_states, *terms)
    weights = doubles(len(kernel), seed=4)
    got, expected = (torch.autograd.grad(x, inputs, weights) for x in (kernel, plain))
    assert_same([kernel, *(g.to_dense() for g in got)], [plain, *(g.to_dense() for g in expected)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_normalised_row_of_zeros_has_torchs_gradient(ragged: bool, dtype: torch.dtype) -> None:
    """As the row of an embedding's padding_idx is, once it is tied."""
    candidates = as_ragged(EVERYTHING, rows_of(ONE)) if ragged else EVERYTHING
    criterion = loss_over(candidates, {"scale": 5.0}).to(dtype)
    hidden_states = doubles(5, D, seed=1).to(dtype)
    criterion.classes.weight.data[3] = 0
    _, _, found = run(criterion, hidden_states, ONE)
    criterion.zero_grad()
    torch.autograd.backward(full_cross_entropy(criterion, hidden_states, ONE).sum() / rows_of(ONE))
    torch.testing.assert_close(found, gradient(criterion.classes.weight), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ragged", [False, True])
@FORMS
def test_float32_is_near_float64(form: dict[str, Any], ragged: bool) -> None:
    candidates = as_ragged(SOME, rows_of(ONE)) if ragged else SOME
    exact = run(loss_over(candidates, form), doubles(5, D, seed=1), ONE)
    single = loss_over(candidates, form).float()
    rounded = run(single, doubles(5, D, seed=1).float(), ONE)
    assert all(each.dtype == torch.float32 for each in rounded)
    assert_same([each.double() for each in rounded], exact, 2e-5)


@pytest.mark.parametrize("ragged", [False, True])
def test_no_candidates_leave_the_targets(ragged: bool) -> None:
    none = SharedCandidates(torch.empty(0, dtype=torch.int64), torch.empty(0))
    no_rows = RaggedCandidates(torch.zeros(5, dtype=torch.int64), none.ids, none.log_weights)
    candidates = no_rows if ragged else none
    loss, *gradients = run(loss_over(candidates, {}), doubles(5, D, seed=1), ONE)
    assert loss == 0
    assert all(float(each.abs().max()) == 0 for each in gradients)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_row_with_masked_candidates_alone_has_no_loss_and_no_gradient(ragged: bool) -> None:
    drawn = SharedCandidates(torch.tensor([3]), torch.zeros(1))
    criterion = loss_over(as_ragged(drawn, rows_of(ONE)) if ragged else drawn, {}, reduction="none")
    hidden_states = doubles(5, D, seed=1).requires_grad_()
    losses = criterion(hidden_states, ONE)
    losses.sum().backward()
    assert bool(gradient(hidden_states).isfinite().all())
    for row in (0, 4):
        assert float(losses[row].detach()) == 0
        assert float(gradient(hidden_states)[row].abs().max()) < 1e-12


def test_rows_of_unequal_sets() -> None:
    candidates = RaggedCandidates(
        torch.tensor([0, 0, 7, 8, 10]),
        torch.tensor([1, 2, 4, 5, 6, 7, 8, 9, 9, 9]),
        doubles(10, seed=2),
    )
    target = torch.tensor([3, 0, 1, 2])
    criterion, hidden_states = loss_over(candidates, {}, reduction="none"), doubles(4, D, seed=1)
    losses = criterion(hidden_states, target).detach()
    x_BV = criterion.logits(hidden_states).detach()
    for row in range(4):
        first, last = candidates.offsets[row : row + 2].tolist()
        ids = candidates.ids[first:last]
        terms = x_BV[row, ids] + candidates.log_weights[first:last]
        x_t = x_BV[row, target[row]]
        expected = torch.cat([x_t[None], terms]).logsumexp(0) - x_t
        torch.testing.assert_close(losses[row], expected)


@pytest.mark.parametrize("ragged", [False, True])
def test_gradients_are_sparse_coalesced_and_of_the_rows_that_were_there(ragged: bool) -> None:
    candidates = as_ragged(SOME, rows_of(ONE)) if ragged else SOME
    criterion = loss_over(candidates, {})
    criterion(doubles(5, D, seed=1), ONE).backward()
    for parameter in criterion.parameters():
        found = gradient(parameter)
        assert found.is_sparse
        assert found.is_coalesced()
        assert found.indices()[0].tolist() == [0, 2, 3, 7, 10]
        assert found.shape == parameter.shape


@pytest.mark.parametrize("ragged", [False, True])
def test_large_logits_stay_finite(ragged: bool) -> None:
    candidates = as_ragged(SOME, rows_of(ONE)) if ragged else SOME
    criterion = loss_over(candidates, {}).float()
    hidden_states = doubles(5, D, seed=1).float() * 1e4
    for each in run(criterion, hidden_states, ONE):
        assert bool(each.isfinite().all())
