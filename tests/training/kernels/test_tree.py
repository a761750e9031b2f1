"""The kernel tree against its definition in numpy: branches, probabilities, draws and updates."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.training.kernels.leaves import draw_in_leaves
from logitsieve.training.kernels.tree import add_to_paths, descend

FLOOR = 0.02


def sums_of(phi: Float32, leaves: int, per_leaf: int) -> Float32:
    """[L, F]: row i the sum over the left child of node i, row 0 over everything."""
    sums = np.zeros((leaves, phi.shape[1]), np.float32)
    sums[0] = phi.sum(0)
    for node in range(1, leaves):
        span = leaves >> (node.bit_length() - 1)
        first = (node * span - leaves) * per_leaf
        sums[node] = phi[first : first + span // 2 * per_leaf].sum(0)
    return sums


def leaf_probabilities(
    phi: Float32, query: Float32, floor: float, leaves: int, per_leaf: int, excluded: list[int]
) -> Float64:
    """[L]: the product of the branches' probabilities, by recursion over ranges of leaves."""
    left_in = np.ones(len(phi), bool)
    left_in[excluded] = False

    def mass(first: int, last: int) -> float:
        rows = slice(first * per_leaf, last * per_leaf)
        own = phi[rows][left_in[rows]]
        return max(float((own @ query).sum()), floor * len(own)) if len(own) else 0.0

    def share(first: int, last: int, probability: float) -> list[float]:
        if last - first == 1:
            return [probability]
        middle = (first + last) // 2
        left, right = mass(first, middle), mass(middle, last)
        if left + right == 0:
            return [0.0] * (last - first)
        low = share(first, middle, probability * left / (left + right))
        return low + share(middle, last, probability * right / (left + right))

    return np.array(share(0, leaves, 1.0))


class Case:
    """A tree over random features, and what it is asked."""

    def __init__(self, classes: int, leaves: int, excluded: list[list[int]], seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.classes, self.leaves = classes, leaves
        self.per_leaf = -(-classes // leaves)
        # Mean 0.1, so that many partial sums are negative.
        self.phi = generator.normal(0.1, 1, (classes, 24)).astype(np.float32)
        self.queries = generator.normal(0.1, 1, (len(excluded), 24)).astype(np.float32)
        self.sums = sums_of(self.phi, leaves, self.per_leaf)
        self.excluded = excluded
        self.offsets = np.cumsum([0] + [len(ids) for ids in excluded])
        self.flat = np.array([i for ids in excluded for i in ids], np.int64)
        owners = np.repeat(np.arange(len(excluded)), np.diff(self.offsets))
        self.masses = np.sum(
            self.phi[self.flat].astype(float) * self.queries[owners].astype(float), axis=1
        )
        self.weight = generator.standard_normal((classes, 5)).astype(np.float32)
        self.hidden = generator.standard_normal((len(excluded), 5)).astype(np.float32)

    def descend(self, uniforms: Float64 | None, leaves: Int64) -> Float64:
        log_q = np.empty(leaves.shape)
        given = uniforms is None
        descend(
            self.sums, self.classes, self.per_leaf, self.queries,
            np.full(len(self.queries), FLOOR), self.offsets, self.flat, self.masses,
            given, np.empty((0, 0)) if uniforms is None else uniforms, leaves, log_q,
        )  # fmt: skip
        return log_q

    def probabilities(self, row: int) -> Float64:
        return leaf_probabilities(
            self.phi, self.queries[row], FLOOR, self.leaves, self.per_leaf, self.excluded[row]
        )


CASES = [
    Case(40, 8, [[], [3], [0, 1, 2, 3, 4], [39]]),
    Case(37, 8, [[36], [35, 36], [7, 30]], seed=1),  # the last leaf is short
    Case(9, 8, [[], [8]], seed=2),  # leaves without any class
    Case(5, 1, [[], [2]], seed=3),  # a leaf and no branch
]


@pytest.mark.parametrize("case", CASES)
def test_the_probability_of_a_leaf_is_the_product_of_the_branches(case: Case) -> None:
    rows = len(case.queries)
    leaves = np.tile(np.arange(case.leaves), (rows, 1))
    log_q = case.descend(None, leaves)
    for row in range(rows):
        np.testing.assert_allclose(
            np.exp(log_q[row]), case.probabilities(row), rtol=2e-4, atol=1e-7
        )
    np.testing.assert_allclose(np.exp(log_q).sum(1), 1, rtol=1e-12)


def test_partial_sums_are_negative_somewhere() -> None:
    case = CASES[0]
    assert (case.sums @ case.queries.T < 0).any()


@pytest.mark.parametrize("case", CASES)
def test_draws_have_the_probabilities_that_they_report(case: Case) -> None:
    draws, rows = 100_000, len(case.queries)
    uniforms = np.sort(np.random.default_rng(5).random((rows, draws)), axis=1)
    leaves = np.empty((rows, draws), np.int64)
    log_q = case.descend(uniforms, leaves)
    for row in range(rows):
        probabilities = np.exp(case.descend(None, np.tile(np.arange(case.leaves), (rows, 1))))[row]
        np.testing.assert_array_equal(np.exp(log_q[row]), probabilities[leaves[row]])
        counts = np.bincount(leaves[row], minlength=case.leaves)
        assert not counts[probabilities == 0].any()
        expected = draws * probabilities[probabilities > 0]
        freedom = len(expected) - 1
        chi = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
        assert chi < freedom + 5 * np.sqrt(2 * freedom) + 5


def test_no_leaf_where_everything_is_excluded() -> None:
    case = Case(4, 2, [[0, 1, 2, 3]])
    leaves = np.empty((1, 3), np.int64)
    case.descend(np.array([[0.1, 0.5, 0.9]]), leaves)
    assert (leaves == -1).all()


@pytest.mark.parametrize(("normalize", "absolute"), [(False, False), (True, False), (False, True)])
def test_within_a_leaf_classes_are_drawn_by_their_current_logits(
    normalize: bool, absolute: bool
) -> None:
    case = Case(37, 8, [[36], [5, 6], []])
    rows, per_leaf = 3, case.per_leaf
    logits = case.hidden.astype(float) @ case.weight.T.astype(float)
    if normalize:
        logits /= np.linalg.norm(case.weight.astype(float), axis=1)
    masses = np.exp(np.abs(logits) if absolute else logits)
    for row, out in enumerate(case.excluded):
        masses[row, out] = 0
    ids = np.tile(np.arange(37), (rows, 1))
    leaves, log_q = ids // per_leaf, np.zeros((rows, 37))

    def ask(given: bool, uniforms: Float64, leaves: Int64, ids: Int64, log_q: Float64) -> None:
        draw_in_leaves(
            case.weight, leaves * per_leaf, 37, per_leaf, normalize, absolute, case.hidden,
            case.offsets, case.flat, given, uniforms, leaves, ids, log_q,
        )  # fmt: skip

    ask(True, np.empty((0, 0)), leaves, ids, log_q)
    sums = np.stack([np.bincount(leaves[0], row, minlength=8)[leaves[0]] for row in masses])
    np.testing.assert_allclose(np.exp(log_q), masses / sums, rtol=1e-4)

    draws = 20_000
    drawn, drawn_q = np.empty((rows, draws), np.int64), np.zeros((rows, draws))
    uniforms = np.random.default_rng(7).random((rows, draws))
    ask(False, uniforms, np.full((rows, draws), 1), drawn, drawn_q)
    for row in range(rows):
        probabilities = np.exp(log_q[row]) * (leaves[row] == 1)
        counts = np.bincount(drawn[row], minlength=37)
        np.testing.assert_allclose(counts / draws, probabilities, atol=5 * np.sqrt(0.25 / draws))
        np.testing.assert_array_equal(drawn_q[row], log_q[row, drawn[row]])


def test_a_thousand_updates_leave_what_building_anew_gives() -> None:
    case = Case(300, 16, [[]])
    generator, phi, sums = np.random.default_rng(9), case.phi.copy(), case.sums.copy()
    for _ in range(1000):
        rows = np.sort(generator.choice(300, 7, replace=False))
        new = generator.normal(0.1, 1, (7, 24)).astype(np.float32)
        add_to_paths(sums, rows // case.per_leaf, new - phi[rows])
        phi[rows] = new
    np.testing.assert_allclose(sums, sums_of(phi, 16, case.per_leaf), atol=1e-3)


@pytest.mark.parametrize("leaves", [1, 4, 32])
def test_building_is_adding_every_class(leaves: int) -> None:
    case = Case(100, leaves, [[]])
    sums = np.zeros_like(case.sums)
    add_to_paths(sums, np.arange(100) // case.per_leaf, case.phi.copy())
    np.testing.assert_allclose(sums, case.sums, atol=1e-4)


def test_adding_nothing_changes_nothing() -> None:
    sums = np.ones((4, 3), np.float32)
    add_to_paths(sums, np.empty(0, np.int64), np.empty((0, 3), np.float32))
    assert (sums == 1).all()
