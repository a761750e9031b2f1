"""RF-softmax and the quadratic kernel: candidates are counted as often as they are expected.

The distribution of a batch within leaves, against its definition in float64.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import (
    RaggedCandidates,
    SharedCandidates,
    Targets,
    read_batch,
)
from logitsieve.training.autograd.classes import LogitForm
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.losses.kernel_softmax import (
    KernelSoftmax,
    LeafSoftmax,
    QuadraticSoftmax,
    RFSoftmax,
    draw_by,
)
from logitsieve.training.structures.tree import Excluded
from tests.training.loss_kit import Numbers, doubles, full_cross_entropy

DIM = 6
METHODS = pytest.mark.parametrize("kind", [RFSoftmax, QuadraticSoftmax])
FORMS = pytest.mark.parametrize("form", ["shared", "per_row", "pooled"])


def head_of(kind: type[KernelSoftmax], classes: int, **options: Any) -> KernelSoftmax:
    torch.manual_seed(2)
    if kind is RFSoftmax:  # few directions: many partial sums are negative
        options = {"n_features": 8, "scale": 4.0, **options}
    criterion = kind(DIM, classes, dtype=torch.float64, **options)
    with torch.no_grad():
        criterion.classes.weight.mul_(3)
    criterion.tree.rebuild(criterion.classes.weight.detach(), None)
    return criterion


def single(classes: list[int]) -> Targets:
    return Targets(torch.arange(len(classes)), torch.tensor(classes), len(classes), True)


def estimates(
    criterion: KernelSoftmax,
    hidden: Tensor,
    targets: Targets,
    candidates: SharedCandidates | RaggedCandidates,
) -> Tensor:
    """[B]: what the candidates make of the sum of e^x over all classes but the targets."""
    x_BV = criterion.full_logits(hidden).detach()
    x_BV[targets.rows, targets.classes] = -torch.inf
    if isinstance(candidates, SharedCandidates):
        return (x_BV[:, candidates.ids] + candidates.log_weights).exp().sum(1)
    rows = torch.arange(len(hidden)).repeat_interleave(candidates.offsets.diff())
    terms = (x_BV[rows, candidates.ids] + candidates.log_weights).exp()
    return torch.zeros(len(hidden), dtype=x_BV.dtype).index_add_(0, rows, terms)


def rest_of(criterion: KernelSoftmax, hidden: Tensor, targets: Targets) -> Tensor:
    x_BV = criterion.full_logits(hidden).detach()
    x_BV[targets.rows, targets.classes] = -torch.inf
    return x_BV.exp().sum(1)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (RFSoftmax, "shared"),
        (QuadraticSoftmax, "per_row"),
        (RFSoftmax, "pooled"),
        pytest.param(QuadraticSoftmax, "shared", marks=pytest.mark.exhaustive),
        pytest.param(RFSoftmax, "per_row", marks=pytest.mark.exhaustive),
        pytest.param(QuadraticSoftmax, "pooled", marks=pytest.mark.exhaustive),
    ],
)
def test_the_estimated_normaliser_is_right_on_average(kind: type[KernelSoftmax], form: str) -> None:
    # With few directions sums that are cut off at the floor make rare draws count for very much.
    more = {"n_features": 256} if kind is RFSoftmax else {}
    criterion = head_of(kind, 1000, form=form, n_sampled=8, leaf=16, **more)
    hidden, targets = criterion.prepare(doubles(4, DIM)), single([5, 999, 30, 5])
    found = torch.stack(
        [
            estimates(
                criterion,
                hidden,
                targets,
                criterion.propose(hidden, targets, criterion.random.next()),
            )
            for _ in range(400)
        ]
    )
    error = found.std(0) / len(found) ** 0.5
    assert (error < 0.2 * found.mean(0)).all()
    assert ((found.mean(0) - rest_of(criterion, hidden, targets)).abs() < 4 * error).all()


@METHODS
def test_per_row_the_normaliser_is_right_by_enumeration(kind: type[KernelSoftmax]) -> None:
    """All pairs of draws for V = 9, m = 2, each with its probability, through `propose`."""
    criterion = head_of(kind, 9, form="per_row", n_sampled=2, leaf=3)
    hidden, targets = criterion.prepare(doubles(1, DIM)), single([4])
    vectors = hidden / (criterion.logit_form.scale or 1.0)
    excluded = Excluded.of(targets.rows, targets.classes, 1, 9)
    queries = criterion.tree.queries(vectors, excluded)
    log_q = criterion.tree.log_q(
        queries, hidden.float().numpy(), criterion.classes.weight.detach(), np.arange(9)
    )
    q = np.exp(log_q[0])
    leaf_q = q.reshape(-1, 3).sum(1)
    leaf_q = np.append(leaf_q, np.zeros(4 - len(leaf_q)))[:4]
    total, mean = 0.0, 0.0
    for one, other in product(range(9), repeat=2):
        if q[one] * q[other] == 0 or one // 3 > other // 3:
            continue
        branch = [middle_of(leaf_q, i // 3) for i in (one, other)]
        inside = [middle_of(q[i // 3 * 3 : i // 3 * 3 + 3], i % 3) for i in (one, other)]
        drawn = criterion.propose(
            hidden, targets, Numbers(torch.tensor([*branch, *inside]).double())
        )
        assert drawn.ids.tolist() == [one, other]
        times = 1 if one // 3 == other // 3 else 2  # draws are put in the order of their leaves
        total += times * q[one] * q[other]
        mean += times * q[one] * q[other] * float(estimates(criterion, hidden, targets, drawn)[0])
    assert total == pytest.approx(1, rel=1e-9)
    assert mean == pytest.approx(float(rest_of(criterion, hidden, targets)[0]), rel=1e-6)


@METHODS
def test_pooled_the_normaliser_is_right_by_enumeration(kind: type[KernelSoftmax]) -> None:
    """All draws for V = 9 and two rows of one draw each, which both rows use."""
    criterion = head_of(kind, 9, form="pooled", n_sampled=1, leaf=3)
    hidden, targets = criterion.prepare(doubles(2, DIM)), single([4, 0])
    queries = criterion.tree.queries(hidden / (criterion.logit_form.scale or 1.0))
    weight, rows = criterion.classes.weight.detach(), hidden.float().numpy()
    q = np.exp(criterion.tree.log_q(queries, rows, weight, np.arange(9)))
    leaf_q = np.pad(q.reshape(2, 3, 3).sum(2), ((0, 0), (0, 1)))
    total, mean = 0.0, torch.zeros(2).double()
    for ids in product(range(9), repeat=2):
        branch = [middle_of(leaf_q[row], i // 3) for row, i in enumerate(ids)]
        inside = [middle_of(q[row, i // 3 * 3 :][:3], i % 3) for row, i in enumerate(ids)]
        drawn = criterion.propose(
            hidden, targets, Numbers(torch.tensor([*branch, *inside]).double())
        )
        assert drawn.ids.tolist() == list(ids)
        total += q[0, ids[0]] * q[1, ids[1]]
        mean += q[0, ids[0]] * q[1, ids[1]] * estimates(criterion, hidden, targets, drawn)
    assert total == pytest.approx(1, rel=1e-9)
    torch.testing.assert_close(mean, rest_of(criterion, hidden, targets), rtol=1e-6, atol=0)


def middle_of(masses: np.ndarray, place: int) -> float:
    """The number at which inversion chooses a place, in the middle of those that do."""
    ends = np.concatenate([[0], np.cumsum(masses)]) / masses.sum()
    return float((ends[place] + ends[place + 1]) / 2)


@METHODS
def test_shared_the_normaliser_is_right_by_enumeration(kind: type[KernelSoftmax]) -> None:
    """All pairs of leaves for V = 9, m = 2, and within them all pairs of classes."""
    criterion = head_of(kind, 9, form="shared", n_sampled=2, leaf=3)
    hidden, targets = criterion.prepare(doubles(3, DIM)), single([4, 0, 4])
    mixture = criterion.tree.mixture(
        criterion.tree.queries(hidden / (criterion.logit_form.scale or 1.0))
    )
    grid = (np.arange(2000)[None] + 0.5) / 2000
    leaves, log_q = criterion.tree.draw_leaves(mixture, grid)
    leaf_q = np.zeros(4)
    leaf_q[leaves[0]] = np.exp(log_q[0])
    leaf_softmax = LeafSoftmax(
        hidden, targets, criterion.classes.weight.detach(), criterion.logit_form
    )
    total, mean = 0.0, torch.zeros(3).double()
    for a, b in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]:
        pair = torch.tensor([a, b])
        log_q_of_pair = torch.from_numpy(np.log(leaf_q[[a, b]]))
        within = leaf_softmax.probabilities(
            criterion.tree.members(pair), torch.arange(2), log_q_of_pair
        ).numpy()
        for i, j in product(range(3), repeat=2):
            branches = [middle_of(leaf_q, a), middle_of(leaf_q, b)]
            places = [middle_of(within[0], i), middle_of(within[1], j)]
            numbers = Numbers(torch.tensor([*branches, *places]).double())
            drawn = criterion.propose(hidden, targets, numbers)
            assert drawn.ids.tolist() == [3 * a + i, 3 * b + j]
            times = 1 if a == b else 2  # draws are put in the order of their leaves
            probability = leaf_q[a] * leaf_q[b] * within[0, i] * within[1, j]
            total += times * probability
            mean += times * probability * estimates(criterion, hidden, targets, drawn)
    assert total == pytest.approx(1, rel=1e-9)
    torch.testing.assert_close(mean, rest_of(criterion, hidden, targets), rtol=1e-9, atol=0)


@METHODS
@pytest.mark.parametrize("n_sampled", [1, 7])
def test_one_leaf_for_all_is_the_full_softmax_for_every_draw(
    kind: type[KernelSoftmax], n_sampled: int
) -> None:
    criterion = head_of(kind, 30, form="per_row", leaf=30, n_sampled=n_sampled)
    hidden, target = doubles(5, DIM), torch.tensor([0, 29, 3, 3, 8])
    expected = full_cross_entropy(criterion, hidden, target)
    for _ in range(3):
        torch.testing.assert_close(criterion(hidden, target), expected.mean(), rtol=1e-5, atol=1e-5)


@METHODS
def test_targets_are_never_drawn_for_their_row(kind: type[KernelSoftmax]) -> None:
    criterion = head_of(kind, 40, form="per_row", n_sampled=400, leaf=4)
    target = torch.tensor([[3, 39, -100], [0, 1, 1], [20, 21, 22]])
    batch = read_batch(doubles(3, DIM), target, DIM, 40, -100)
    drawn = criterion.propose(criterion.prepare(batch.hidden), batch.targets, StepRng(0, 0))
    assert isinstance(drawn, RaggedCandidates)
    for row, ids in enumerate(drawn.ids.view(3, 400)):
        assert not torch.isin(ids, target[row]).any()


def test_a_row_whose_targets_are_all_classes_has_no_candidates() -> None:
    criterion = head_of(RFSoftmax, 4, form="per_row", n_sampled=5, leaf=2)
    target = torch.tensor([[0, 1, 2, 3], [0, -100, -100, -100]])
    batch = read_batch(doubles(2, DIM), target, DIM, 4, -100)
    drawn = criterion.propose(criterion.prepare(batch.hidden), batch.targets, StepRng(0, 0))
    assert isinstance(drawn, RaggedCandidates)
    assert drawn.offsets.tolist() == [0, 0, 5]
    losses = head_of(RFSoftmax, 4, form="per_row", leaf=4, reduction="none")
    torch.testing.assert_close(
        losses(doubles(2, DIM), target),
        full_cross_entropy(losses, doubles(2, DIM), target),
        rtol=1e-5,
        atol=1e-5,
    )


def test_more_features_come_nearer_to_the_kernel() -> None:
    """Leaves of one class: probabilities are those of the features, and tend to exp(nu cos)."""
    hidden, targets = 4.0 * torch.nn.functional.normalize(doubles(1, DIM), dim=-1), single([0])
    excluded = Excluded.of(targets.rows, targets.classes, 1, 30)
    distances = []
    for n_features in (16, 256, 4096):
        options = {"n_features": n_features, "features": "fourier", "nu": 2.0, "leaf": 1}
        criterion = head_of(RFSoftmax, 30, form="per_row", **options)
        weight = criterion.classes.weight.detach()
        kernel = (2.0 * criterion.full_logits(hidden).detach()[0] / 4.0).exp()
        kernel[0] = 0
        queries = criterion.tree.queries(hidden / 4.0, excluded)
        log_q = criterion.tree.log_q(queries, hidden.float().numpy(), weight, np.arange(30))
        probabilities = torch.from_numpy(np.exp(log_q[0]))
        distances.append(float((probabilities - kernel / kernel.sum()).abs().sum()))
    assert distances[1] < distances[0] / 2
    assert distances[2] < distances[1] / 2
    assert distances[2] < 0.05


def test_the_shared_law_survives_logits_of_any_size() -> None:
    criterion = QuadraticSoftmax(DIM, 50, n_sampled=20, leaf=8)
    with torch.no_grad():
        criterion.classes.weight.mul_(1000)
    criterion.tree.rebuild(criterion.classes.weight.detach(), None)
    assert torch.isfinite(criterion(1000 * torch.randn(3, DIM), torch.tensor([0, 1, 2])))


@FORMS
def test_the_law_survives_the_largest_nu(form: str) -> None:
    """Sums below their floor, e^-700 V, make shares that no float32 holds."""
    criterion = head_of(RFSoftmax, 50, nu=350.0, form=form)
    losses = [criterion(doubles(6, DIM, seed=seed), torch.arange(6)).detach() for seed in range(20)]
    assert bool(torch.stack(losses).isfinite().all())


def test_what_is_exported() -> None:
    criterion = RFSoftmax(DIM, 20)
    exported = criterion.export()
    assert exported.normalized_contexts
    torch.testing.assert_close(exported.weight.norm(dim=1), torch.full((20,), 1 / 0.09))
    with pytest.raises(InvalidRequest, match="cannot be served"):
        QuadraticSoftmax(DIM, 20).export()


@pytest.mark.parametrize(
    ("kind", "options", "field"),
    [
        (RFSoftmax, {"nu": 0.0}, "nu"),
        (RFSoftmax, {"nu": float("nan")}, "nu"),
        (RFSoftmax, {"nu": 351.0}, "nu"),
        (RFSoftmax, {"features": "sine"}, "features"),
        (RFSoftmax, {"n_features": 0}, "n_features"),
        (RFSoftmax, {"n_features": 65_537}, "n_features"),
        (RFSoftmax, {"scale": None}, "scale"),
        (RFSoftmax, {"form": "ragged"}, "form"),
        (RFSoftmax, {"leaf": 0}, "leaf"),
        (QuadraticSoftmax, {"alpha": -1.0}, "alpha"),
        (QuadraticSoftmax, {"n_sampled": 0}, "n_sampled"),
    ],
)
def test_options_out_of_range_are_named(
    kind: type[KernelSoftmax], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        kind(DIM, 20, **options)
    assert caught.value.field == field


V, D = 7, 5
MEMBERS = torch.tensor([[0, 1, 2], [3, 4, 5], [6, V, V]])  # V: a place without a class
TARGETS = Targets(torch.arange(4), torch.tensor([0, 6, 3, 3]), 4, True)


@pytest.mark.parametrize("form", [LogitForm(), LogitForm(absolute=True), LogitForm(scale=2.0)])
def test_a_leaf_softmax_is_the_mean_of_the_rows_distributions(form: LogitForm) -> None:
    """Every leaf drawn once, all equally likely: Z^ is 3 Z and the target's term."""
    hidden, weight = doubles(4, D), doubles(V, D, seed=1)
    if form.scale is not None:
        hidden = form.scale * torch.nn.functional.normalize(hidden, dim=-1)
    log_q = torch.full((3,), 1 / 3, dtype=torch.float64).log()
    leaf_softmax = LeafSoftmax(hidden, TARGETS, weight, form)
    masses = leaf_softmax.probabilities(MEMBERS, torch.arange(3), log_q)
    rows = weight if form.scale is None else torch.nn.functional.normalize(weight, dim=-1)
    x_BV = hidden @ rows.T
    x_BV = x_BV.abs() if form.absolute else x_BV
    z_B = x_BV.exp().sum(1) + x_BV[TARGETS.rows, TARGETS.classes].exp()
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for leaf, members in enumerate(MEMBERS):
        classes = members[members < V]
        expected[leaf, : len(classes)] = (x_BV[:, classes].exp() / z_B[:, None]).sum(0)
    torch.testing.assert_close(masses, expected / expected.sum(1, keepdim=True))


def test_a_place_is_drawn_by_inversion_and_never_one_without_mass() -> None:
    masses = torch.tensor([[0.0, 0.25, 0.75, 0.0]]).double().expand(5, 4)
    uniforms = torch.tensor([1e-9, 0.2, 0.3, 0.9, 1 - 1e-16]).double()
    assert draw_by(masses, uniforms).tolist() == [1, 1, 2, 2, 2]


def test_places_without_mass_are_never_drawn() -> None:
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]] * 4).double()
    uniforms = torch.tensor([1e-17, 0.4999, 0.5001, 1 - 1e-16]).double()
    assert draw_by(probabilities, uniforms).tolist() == [1, 1, 3, 3]
