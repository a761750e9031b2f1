"""RF-softmax and the quadratic kernel: candidates count as often as they are expected.

The distribution of a batch within leaves, against its definition in float64.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.training import LOSSES, Quadratic, RandomFeatures, SampledSoftmax
from logitsieve.training.autograd.batch import Targets, read_batch
from logitsieve.training.autograd.classes import LogitForm
from logitsieve.training.proposals.kernel import KernelProposal, LeafSoftmax, draw_by
from tests.refusals import refused
from tests.training.loss_kit import Numbers, doubles, estimates, proposed, rest_of

DIM = 6
METHODS = pytest.mark.parametrize("name", ["rf", "quadratic"])


def loss_of(name: str, classes: int, **options: Any) -> SampledSoftmax:
    torch.manual_seed(2)
    if name == "rf":  # few directions: many partial sums are negative
        options = {"n_features": 8, "scale": 4.0, **options}
    criterion = LOSSES[name](DIM, classes, dtype=torch.float64, **options)
    assert isinstance(criterion, SampledSoftmax)
    with torch.no_grad():
        criterion.classes.weight.mul_(3)
    criterion.rebuild()
    return criterion


def kernel(criterion: SampledSoftmax) -> KernelProposal:
    assert isinstance(criterion.proposal, KernelProposal)
    return criterion.proposal


def vectors_of(criterion: SampledSoftmax, hidden_states: Tensor) -> Tensor:
    """Contexts as the kernel takes them."""
    return criterion.prepare(hidden_states) / (criterion.classes.form.scale or 1.0)


def middle_of(masses: np.ndarray, place: int) -> float:
    """The number at which inversion chooses a place, in the middle of those that do."""
    ends = np.concatenate([[0], np.cumsum(masses)]) / masses.sum()
    return float((ends[place] + ends[place + 1]) / 2)


@METHODS
def test_the_normaliser_is_right_by_enumeration(name: str) -> None:
    """All pairs of leaves for V = 9, m = 2, and within them all pairs of classes."""
    criterion = loss_of(name, 9, n_sampled=2, leaf=3)
    hidden_states, target = doubles(3, DIM), torch.tensor([4, 0, 4])
    tree, targets = kernel(criterion).tree, read_batch(hidden_states, target, DIM, 9, -100).targets
    mixture = tree.mixture(vectors_of(criterion, hidden_states))
    leaves, log_q = tree.draw(mixture, (np.arange(2000) + 0.5) / 2000)
    leaf_q = np.zeros(4)
    leaf_q[leaves] = np.exp(log_q)
    weight = criterion.classes.weight.detach()
    prepared, form = criterion.prepare(hidden_states), criterion.classes.form
    leaf_softmax = LeafSoftmax(prepared, targets, weight, form, hidden_states.dtype)
    total, mean = 0.0, torch.zeros(3).double()
    for a, b in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]:
        log_q_of_pair = torch.from_numpy(np.log(leaf_q[[a, b]]))
        members = tree.members(torch.tensor([a, b]))
        within = leaf_softmax.probabilities(members, torch.arange(2), log_q_of_pair).numpy()
        for i, j in product(range(3), repeat=2):
            branches = [middle_of(leaf_q, a), middle_of(leaf_q, b)]
            places = [middle_of(within[0], i), middle_of(within[1], j)]
            numbers = Numbers(torch.tensor([*branches, *places]).double())
            drawn = proposed(criterion, hidden_states, target, numbers)
            assert drawn.ids.tolist() == [3 * a + i, 3 * b + j]
            times = 1 if a == b else 2  # draws are put in the order of their leaves
            probability = leaf_q[a] * leaf_q[b] * within[0, i] * within[1, j]
            total += times * probability
            mean += times * probability * estimates(criterion, hidden_states, target, drawn)
    assert total == pytest.approx(1, rel=1e-9)
    torch.testing.assert_close(mean, rest_of(criterion, hidden_states, target), rtol=1e-9, atol=0)


def test_more_features_come_nearer_to_the_kernel() -> None:
    """Leaves of one class: probabilities are those of the features, and tend to exp(nu cos)."""
    hidden_states, distances = doubles(1, DIM), []
    for n_features in (16, 256, 4096):
        options = {"n_features": n_features, "features": "fourier", "nu": 2.0, "leaf": 1}
        criterion = loss_of("rf", 30, **options)
        masses = (2.0 * criterion.logits(hidden_states).detach()[0] / 4.0).exp()
        tree = kernel(criterion).tree
        ids, log_q = tree.draw(
            tree.mixture(vectors_of(criterion, hidden_states)), (np.arange(20_000) + 0.5) / 20_000
        )
        probabilities = np.zeros(30)
        probabilities[ids] = np.exp(log_q)
        assert probabilities.sum() == pytest.approx(1)
        distances.append(float(np.abs(probabilities - (masses / masses.sum()).numpy()).sum()))
    assert distances[1] < distances[0] / 2
    assert distances[2] < distances[1] / 2
    assert distances[2] < 0.05


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_of_any_precision(dtype: torch.dtype) -> None:
    same = loss_of("rf", 50).to(torch.bfloat16).float()
    other = loss_of("rf", 50)
    other.load_state_dict(same.state_dict())
    other.to(dtype)
    hidden_states = doubles(3, DIM).float()
    drawn = [proposed(each, hidden_states, torch.tensor([0, 1, 2])) for each in (same, other)]
    assert torch.equal(drawn[0].ids, drawn[1].ids)
    torch.testing.assert_close(drawn[0].log_weights, drawn[1].log_weights, atol=1e-5, rtol=1e-5)


def test_leaves_in_bfloat16_are_asked_for_and_change_log_weights_by_their_rounding() -> None:
    single, half = (loss_of("rf", 50, bfloat16=asked) for asked in (False, True))
    half.load_state_dict(single.state_dict())
    hidden_states, target = doubles(3, DIM).float(), torch.tensor([0, 1, 2])
    drawn = [proposed(each, hidden_states, target) for each in (single, half)]
    same = drawn[0].ids == drawn[1].ids
    assert same.float().mean() > 0.8
    off = (drawn[0].log_weights - drawn[1].log_weights)[same].abs()
    assert 0 < off.max() < 0.1


def test_the_distribution_survives_logits_and_a_nu_of_any_size() -> None:
    criterion = LOSSES["quadratic"](DIM, 50, n_sampled=20, leaf=8)
    assert isinstance(criterion, SampledSoftmax)
    with torch.no_grad():
        criterion.classes.weight.mul_(1000)
    criterion.rebuild()
    assert torch.isfinite(criterion(1000 * torch.randn(3, DIM), torch.tensor([0, 1, 2])))
    # Sums below their floor, e^-700 V, make shares that no float32 holds.
    criterion = loss_of("rf", 50, nu=350.0)
    losses = [criterion(doubles(6, DIM, seed=seed), torch.arange(6)).detach() for seed in range(20)]
    assert bool(torch.stack(losses).isfinite().all())


def test_exports_are_softmaxes_and_features_need_unit_vectors() -> None:
    exported = LOSSES["rf"](DIM, 20).export()
    assert exported.normalized_contexts
    torch.testing.assert_close(exported.weight.norm(dim=1), torch.full((20,), 1 / 0.09))
    with pytest.raises(InvalidRequest, match="cannot be served"):
        LOSSES["quadratic"](DIM, 20).export()
    with refused("scale", "unit vectors"):
        SampledSoftmax(DIM, 20, RandomFeatures())
    assert SampledSoftmax(DIM, 20, Quadratic()).export().weight.shape == (20, DIM)
    assert Quadratic().alpha == 100  # as Blanc and Rendle have it


V, D = 7, 5
MEMBERS = torch.tensor([[0, 1, 2], [3, 4, 5], [6, V, V]])  # V: a place without a class
TARGETS = Targets(torch.arange(4), torch.tensor([0, 6, 3, 3]), 4, True)


@pytest.mark.parametrize("form", [LogitForm(), LogitForm(absolute=True), LogitForm(scale=2.0)])
def test_a_leaf_softmax_is_the_mean_of_the_rows_distributions(form: LogitForm) -> None:
    """Every leaf drawn once, all equally likely: Z^ is 3 Z and the target's term."""
    hidden_states, weight = doubles(4, D), doubles(V, D, seed=1)
    if form.scale is not None:
        hidden_states = form.scale * torch.nn.functional.normalize(hidden_states, dim=-1)
    log_q = torch.full((3,), 1 / 3, dtype=torch.float64).log()
    leaf_softmax = LeafSoftmax(hidden_states, TARGETS, weight, form, hidden_states.dtype)
    masses = leaf_softmax.probabilities(MEMBERS, torch.arange(3), log_q)
    rows = weight if form.scale is None else torch.nn.functional.normalize(weight, dim=-1)
    x_BV = hidden_states @ rows.T
    x_BV = x_BV.abs() if form.absolute else x_BV
    z_B = x_BV.exp().sum(1) + x_BV[TARGETS.rows, TARGETS.classes].exp()
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for leaf, members in enumerate(MEMBERS):
        classes = members[members < V]
        expected[leaf, : len(classes)] = (x_BV[:, classes].exp() / z_B[:, None]).sum(0)
    torch.testing.assert_close(masses, expected / expected.sum(1, keepdim=True))


def test_a_place_is_drawn_by_inversion_and_never_one_without_mass() -> None:
    masses = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).double().expand(5, 5)
    uniforms = torch.tensor([1e-17, 0.2, 0.3, 0.9, 1 - 1e-16]).double()
    assert draw_by(masses, uniforms).tolist() == [1, 1, 3, 3, 3]
