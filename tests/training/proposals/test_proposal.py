from itertools import pairwise
from math import comb, log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from logitsieve.training import LSH, KMeans, SampledSoftmax, SoftmaxLoss, TopK
from logitsieve.training.autograd.batch import (
    Candidates,
    RaggedCandidates,
    SharedCandidates,
    Targets,
    read_batch,
)
from logitsieve.training.proposals.proposal import SearchProposal, sqrt_classes
from tests.refusals import refused
from tests.training.loss_kit import doubles, full_cross_entropy, gradient, proposed

D = 8
KINDS: dict[str, tuple[type[SearchProposal], dict[str, Any]]] = {
    "lsh": (LSH, {"tables": 6, "bits": 4}),
    "lsh-dense": (LSH, {"tables": 6, "bits": 4, "structured": False}),
    "lsh-mips": (LSH, {"tables": 6, "bits": 4, "mips": True}),
    "kmeans": (KMeans, {"n_lists": 5}),
    "top-k": (TopK, {}),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
BOTH_FORMS = pytest.mark.parametrize("per_row", [True, False])
ONE = torch.tensor([3, 0, -100, 10, 3])
SEVERAL = torch.tensor([[3, 1, -100], [0, 0, 5], [-100, -100, -100], [10, 9, 8], [-100, 3, -100]])


def make(kind: str, n_classes: int, **options: Any) -> SampledSoftmax:
    cls, own = KINDS[kind]
    torch.manual_seed(3)
    common = {key: options.pop(key) for key in ("reduction", "scale") if key in options}
    proposal = cls(**{**own, **options})
    criterion = SampledSoftmax(D, n_classes, proposal, dtype=torch.float64, **common)
    criterion.classes.weight.data.mul_(4)
    if criterion.classes.bias is not None:
        criterion.classes.bias.data.copy_(doubles(n_classes, 1, seed=8, scale=0.3))
    criterion.rebuild()
    return criterion


def sets(candidates: Candidates) -> list[tuple[list[int], list[int]]]:
    """(S, T) of each row, or of the batch; S without the rows' own targets if it is a row's."""
    ids, weights = candidates.ids.tolist(), candidates.log_weights.tolist()
    bounds = (
        candidates.offsets.tolist() if isinstance(candidates, RaggedCandidates) else [0, len(ids)]
    )
    found = []
    for start, end in pairwise(bounds):
        own = list(zip(ids[start:end], weights[start:end], strict=True))
        found.append(([i for i, w in own if w == 0], [i for i, w in own if w > 0]))
    return found


def gradients(criterion: SoftmaxLoss, loss: Tensor, hidden_states: Tensor) -> list[Tensor]:
    criterion.zero_grad()
    torch.autograd.backward(loss)
    return [gradient(each).to_dense() for each in (hidden_states, *criterion.parameters())]


@EVERY_KIND
@BOTH_FORMS
@pytest.mark.parametrize("everything", ["S", "T"])
@pytest.mark.parametrize(
    ("target", "form"),
    [
        pytest.param(SEVERAL, {}, id="several-bias"),
        pytest.param(ONE, {"scale": 3.0}, id="one-scale"),
        pytest.param(ONE, {}, id="one-bias", marks=pytest.mark.exhaustive),
        pytest.param(SEVERAL, {"scale": 3.0}, id="several-scale", marks=pytest.mark.exhaustive),
    ],
)
def test_all_classes_are_the_full_softmax(
    kind: str, per_row: bool, target: Tensor, everything: str, form: dict[str, Any]
) -> None:
    V = 23
    if everything == "S":
        # One bit and many tables, all lists, all logits: the search finds every class.
        options: dict[str, Any] = {"k": V, "n_uniform": 0}
        options |= {"tables": 60, "bits": 1} if kind.startswith("lsh") else {}
    else:
        options = {"k": 3, "max_shared": 4, "n_uniform": V}
    criterion = make(kind, V, per_row=per_row, **options, **form)
    hidden_states = doubles(5, D, seed=1).requires_grad_()
    loss = criterion(hidden_states, target)
    found = [loss.detach(), *gradients(criterion, loss, hidden_states)]
    hidden_states.grad = None
    expected = full_cross_entropy(criterion, hidden_states, target)
    loss = expected[expected != 0].mean()
    wanted = [loss.detach(), *gradients(criterion, loss, hidden_states)]
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)


@EVERY_KIND
@BOTH_FORMS
def test_the_mean_over_every_T_is_Z(kind: str, per_row: bool) -> None:
    """V = 11, |T| = 2: steps until all sets T were drawn, each counted once, by stale tables."""
    criterion = make(kind, 11, k=3, n_uniform=2, per_row=per_row, reduction="none")
    criterion.classes.weight.data += doubles(11, D, seed=9, scale=0.3)
    hidden_states, target = doubles(1, D, seed=1), torch.tensor([5])
    x = criterion.logits(hidden_states)[0].detach()
    ((best, _),) = sets(proposed(criterion, hidden_states, target))
    criterion.random.step = 0
    rest = 11 - len({*best, 5})
    estimates: dict[tuple[int, ...], float] = {}
    for step in range(20 * comb(rest, 2)):
        if len(estimates) == comb(rest, 2):
            break
        ((_, drawn),) = sets(proposed(criterion, hidden_states, target))
        criterion.random.step = step  # once more, the same
        found = (criterion(hidden_states, target)[0] + x[5]).exp()
        estimates[tuple(sorted(drawn))] = float(found.detach())
    assert len(estimates) == comb(rest, 2)
    assert np.mean(list(estimates.values())) == pytest.approx(float(x.exp().sum()), rel=1e-12)


@EVERY_KIND
@BOTH_FORMS
def test_T_is_outside_S_and_the_targets(kind: str, per_row: bool) -> None:
    V = 60
    criterion = make(kind, V, k=6, max_shared=9, n_uniform=10, per_row=per_row)
    hidden_states = doubles(5, D, seed=1)
    batch = read_batch(hidden_states, SEVERAL, D, V, -100)
    named = batch.targets.padded()
    candidates = proposed(criterion, hidden_states, SEVERAL)
    for row, (best, drawn) in enumerate(sets(candidates)):
        own = {int(t) for t in (named[row] if per_row else named.ravel()) if t >= 0}
        assert len(drawn) == len(set(drawn)) == 10
        assert len(best) == len(set(best))
        assert not (set(best) | own) & set(drawn)
        if per_row:
            assert not own & set(best)
        else:
            assert own <= set(best)
            assert len(best) <= 9 + len(own)
            assert candidates.ids.tolist() == sorted(candidates.ids.tolist())
        weights = candidates.log_weights[candidates.log_weights > 0]
        wanted = log((V - len(own | set(best))) / 10)
        assert float(weights[10 * row]) == pytest.approx(wanted, abs=1e-12)


def test_more_uniform_classes_err_less_as_theorem_3_says() -> None:
    """Levy, Chen, Ermon 2018: at fixed S the rms errors of Z and its gradient fall as l^-1/2."""
    V, k, draws = 3000, 100, 400
    hidden_states, target = doubles(1, D, seed=2).repeat(draws, 1), torch.full((draws,), 7)
    sizes = [8, 32, 128]
    errors, slopes = [], []
    for size in sizes:
        criterion = make("top-k", V, k=k, n_uniform=size, per_row=True, reduction="none")
        x = criterion.logits(hidden_states[:1])[0].detach()
        whole = hidden_states[:1].clone().requires_grad_()
        torch.autograd.backward(full_cross_entropy(criterion, whole, target[:1]).sum())
        rows = hidden_states.clone().requires_grad_()
        losses = criterion(rows, target)
        losses.sum().backward()
        assert rows.grad is not None
        assert whole.grad is not None
        z = float(x.exp().sum())
        of_z = ((losses.detach() + x[7]).exp() / z - 1).square().mean().sqrt()
        of_gradient = (rows.grad - whole.grad).square().sum(1).mean().sqrt()
        assert float(of_z) <= (V / (k * size)) ** 0.5
        errors.append((float(of_z), float(of_gradient)))
    for column in zip(*errors, strict=True):
        slopes.append(np.polyfit(np.log(sizes), np.log(column), 1)[0])
    assert all(abs(slope + 0.5) < 0.08 for slope in slopes), slopes


def test_the_bias_of_the_gradient_falls_as_the_variance() -> None:
    """At fixed S as 1 / l - 1 / (V - |S|), for T is without replacement."""
    V, k, draws = 80, 10, 100_000
    hidden_states, target = (
        doubles(1, D, seed=2, scale=0.5).repeat(draws, 1),
        torch.full((draws,), 7),
    )
    found, sizes = [], (4, 16)
    for size in sizes:
        criterion = make("lsh", V, k=k, n_uniform=size, per_row=True)
        ((best, _),) = sets(proposed(criterion, hidden_states[:1], target[:1]))
        whole = hidden_states[:1].clone().requires_grad_()
        (exact,) = torch.autograd.grad(
            full_cross_entropy(criterion, whole, target[:1]).sum(), whole
        )
        rows = hidden_states.clone().requires_grad_()
        (each,) = torch.autograd.grad(criterion(rows, target), rows)
        each *= draws
        bias, error = each.mean(0) - exact[0], each.std(0) / draws**0.5
        assert float(error.norm()) < 0.1 * float(bias.norm())
        found.append(float(bias.norm()))
    rest = V - len({*best, 7})
    order = (1 / sizes[0] - 1 / rest) / (1 / sizes[1] - 1 / rest)
    assert order / 1.5 < found[0] / found[1] < order * 1.5, (found, order)


def test_few_rows_have_sets_of_their_own_and_targets_are_padded() -> None:
    criterion = make("lsh", 200, k=20)
    many = doubles(17, D), torch.zeros(17, dtype=torch.int64)
    assert isinstance(proposed(criterion, *many), SharedCandidates)
    assert isinstance(proposed(criterion, many[0][:16], many[1][:16]), RaggedCandidates)
    targets = Targets(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([4, 9, 1, 3, 3]), 3, False)
    assert targets.padded().tolist() == [[4, 9], [1, -1], [3, 3]]


@EVERY_KIND
def test_defaults_follow_V(kind: str) -> None:
    criterion = make(kind, 400)
    assert isinstance(criterion.proposal, SearchProposal)
    assert criterion.proposal.sizes == (200, {"kmeans": 400, "top-k": 0}.get(kind, 20), 200)
    assert (sqrt_classes(10_000, 10), sqrt_classes(4, 10)) == (1000, 4)


@EVERY_KIND
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"k": 0}, "k"),
        ({"k": 51}, "k"),
        ({"n_uniform": -1}, "n_uniform"),
        ({"max_shared": 51}, "max_shared"),
    ],
)
def test_bad_options_are_named(kind: str, options: dict[str, int], field: str) -> None:
    with refused(field):
        make(kind, 50, **options)
