"""The kernel tree over the rows of W: its probabilities, its draws, and how it follows the rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.classes import LogitForm
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.structures.features import QuadraticFeatures, RandomFourier
from logitsieve.training.structures.tree import Excluded, KernelTree, as_numpy

DIM, CLASSES = 8, 100
UNIT, ABSOLUTE = LogitForm(scale=6.0), LogitForm(absolute=True)


def weights(seed: int = 0, classes: int = CLASSES) -> Tensor:
    return torch.randn(classes, DIM, generator=torch.Generator().manual_seed(seed))


def tree_over(weight: Tensor, form: LogitForm = UNIT, leaf: int = 4, seed: int = 0) -> KernelTree:
    # So few random directions that many partial sums are negative.
    phi = QuadraticFeatures(DIM, 100.0) if form.absolute else RandomFourier(DIM, 6, 4.0, seed)
    tree = KernelTree(phi, DIM, len(weight), form, leaf)
    tree.rebuild(weight, None)
    return tree


def contexts(count: int, form: LogitForm = UNIT) -> Tensor:
    hidden = torch.randn(count, DIM, generator=torch.Generator().manual_seed(9))
    return hidden if form.scale is None else 6 * torch.nn.functional.normalize(hidden, dim=-1)


def probabilities_of(
    tree: KernelTree, hidden: Tensor, weight: Tensor, excluded: Excluded | None = None
) -> np.ndarray:
    vectors = hidden if tree.logit_form.scale is None else hidden / tree.logit_form.scale
    every = np.arange(tree.classes)
    return np.exp(tree.log_q(tree.queries(vectors, excluded), as_numpy(hidden), weight, every))


def excluded_classes(*rows: list[int]) -> Excluded:
    pairs = [(row, i) for row, ids in enumerate(rows) for i in ids]
    owners, ids = (torch.tensor(column) for column in zip(*pairs, strict=True))
    return Excluded.of(owners, ids, len(rows), CLASSES)


@pytest.mark.parametrize("form", [UNIT, ABSOLUTE])
@pytest.mark.parametrize("leaf", [1, 4, 200])
def test_probabilities_sum_to_1_over_what_is_not_excluded(form: LogitForm, leaf: int) -> None:
    weight = weights()
    tree = tree_over(weight, form, leaf)
    excluded = excluded_classes([3, 3], [0, 1, 2, 3, 99], [50])
    q = probabilities_of(tree, contexts(3, form), weight, excluded)
    np.testing.assert_allclose(q.sum(1), 1, rtol=1e-9)
    assert q[0, 3] == 0
    assert (q[1, [0, 1, 2, 3, 99]] == 0).all()
    assert (q > 0).sum() == 3 * CLASSES - 7


@pytest.mark.parametrize("form", [UNIT, ABSOLUTE])
def test_a_hundred_thousand_draws_have_the_probabilities(form: LogitForm) -> None:
    weight, hidden, draws = weights(), contexts(2, form), 100_000
    tree, excluded = tree_over(weight, form), excluded_classes([7], [20, 21])
    q = probabilities_of(tree, hidden, weight, excluded)
    vectors = hidden if form.scale is None else hidden / form.scale
    uniforms = StepRng(3, 0).uniforms(4 * draws).numpy().reshape(2, 2, draws)
    ids, log_q = tree.draw(tree.queries(vectors, excluded), as_numpy(hidden), weight, uniforms)
    for row in range(2):
        np.testing.assert_allclose(np.exp(log_q[row]), q[row, ids[row]], rtol=1e-12)
        counts = np.bincount(ids[row], minlength=CLASSES)
        assert not counts[q[row] == 0].any()
        often = draws * q[row] >= 5
        expected = draws * np.append(q[row][often], q[row][~often].sum())
        found = np.append(counts[often], counts[~often].sum())
        chi = ((found - expected) ** 2 / np.maximum(expected, 1)).sum()
        freedom = often.sum()
        assert chi < freedom + 5 * np.sqrt(2 * freedom)


def test_the_mixture_is_the_mean_of_the_laws_where_nothing_is_clipped() -> None:
    weight, hidden = weights(), contexts(5, ABSOLUTE)
    tree = tree_over(weight, ABSOLUTE)
    queries = tree.queries(hidden)
    every = np.tile(np.arange(tree.leaves), (5, 1))
    each = np.exp(tree._descend(queries, None, every))
    one = np.exp(tree._descend(tree.mixture(queries), None, every[:1]))
    np.testing.assert_allclose(one[0], each.mean(0), rtol=1e-3)


@pytest.mark.parametrize("form", [UNIT, ABSOLUTE])
def test_a_thousand_updates_equal_a_rebuilt_tree(form: LogitForm) -> None:
    weight = weights()
    tree, generator = tree_over(weight, form), torch.Generator().manual_seed(1)
    for _ in range(1000):
        rows = torch.randperm(CLASSES, generator=generator)[:5].sort().values
        weight[rows] += 0.1 * torch.randn(5, DIM, generator=generator)
        tree.update(rows, weight, None)
    anew = tree_over(weight, form)
    assert torch.equal(tree.rows, anew.rows)
    np.testing.assert_allclose(tree.sums, anew.sums, rtol=1e-3, atol=1e-3)


def test_a_stale_tree_has_another_law_and_still_knows_it() -> None:
    weight, hidden = weights(), contexts(1)
    tree, moved = tree_over(weight), weights(5)
    before = probabilities_of(tree, hidden, weight)
    q = probabilities_of(tree, hidden, moved)
    assert not np.allclose(q, before)
    np.testing.assert_allclose(q.sum(), 1, rtol=1e-9)
    tree.update(torch.arange(CLASSES), moved, None)
    assert not np.allclose(probabilities_of(tree, hidden, moved), q)


def test_drift_ends_with_a_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitsieve.training.structures.tree.REBUILD_AFTER", 3)
    weight = weights()
    tree = tree_over(weight)
    tree.sums += 1
    for _ in range(3):
        tree.update(torch.tensor([2]), weight, None)
    np.testing.assert_array_equal(tree.sums, tree_over(weight).sums)
    assert tree.updates == 0


def test_what_is_kept_is_the_whole_state() -> None:
    weight, hidden = weights(), contexts(2)
    one, other = tree_over(weight), tree_over(weights(8), seed=5)
    other.load_state_dict(one.state_dict())
    for tree in (one, other):
        tree.update(torch.tensor([1, 7]), weights(4), None)
    np.testing.assert_array_equal(
        probabilities_of(one, hidden, weight),
        probabilities_of(other, hidden, weight),
    )


def test_states_of_other_trees_are_refused() -> None:
    """Sums of one leaf would fit into those of any number."""
    one, other = tree_over(weights(), leaf=CLASSES), tree_over(weights())
    more = KernelTree(RandomFourier(DIM, 7, 4.0, 0), DIM, CLASSES, UNIT, 4)
    for state in (one.state_dict(), more.state_dict()):
        with pytest.raises(InvalidRequest, match="sums") as caught:
            other.load_state_dict(state)
        assert caught.value.field == "state_dict"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_of_any_precision_are_read(dtype: torch.dtype) -> None:
    weight, hidden = weights().to(torch.bfloat16), contexts(2)
    tree = tree_over(weight.float())
    np.testing.assert_array_equal(
        probabilities_of(tree, hidden, weight.to(dtype)),
        probabilities_of(tree, hidden, weight.float()),
    )


def test_a_row_of_zeros_is_a_class_like_others() -> None:
    weight = weights()
    weight[5] = 0
    q = probabilities_of(tree_over(weight), contexts(1), weight)
    assert np.isfinite(q).all()
    assert q[0, 5] > 0
