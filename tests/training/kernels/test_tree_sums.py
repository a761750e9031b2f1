import numpy as np
import pytest

from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.training.kernels.tree_sums import descend

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
    phi: Float32, query: Float32, floor: float, leaves: int, per_leaf: int
) -> Float64:
    """[L]: the product of the branches' probabilities, by recursion over ranges of leaves."""

    def mass(first: int, last: int) -> float:
        own = phi[first * per_leaf : last * per_leaf]
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
    """A tree over random features, and a query."""

    def __init__(self, classes: int, leaves: int, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.classes, self.leaves = classes, leaves
        self.per_leaf = -(-classes // leaves)
        # Mean 0.1, so that many partial sums are negative.
        self.phi = generator.normal(0.1, 1, (classes, 24)).astype(np.float32)
        self.query = generator.normal(0.1, 1, 24).astype(np.float32)
        self.sums = sums_of(self.phi, leaves, self.per_leaf)

    def descend(self, uniforms: Float64) -> tuple[Int64, Float64]:
        leaves, log_q = np.empty(len(uniforms), np.int64), np.empty(len(uniforms))
        descend(self.sums, self.classes, self.per_leaf, self.query, FLOOR, uniforms, leaves, log_q)
        return leaves, log_q


CASES = [
    Case(40, 8),
    Case(37, 8, seed=1),  # the last leaf is short
    Case(9, 8, seed=2),  # leaves without any class
    Case(5, 1, seed=3),  # a leaf and no branch
]


@pytest.mark.parametrize("case", CASES)
def test_leaves_are_drawn_by_the_product_of_their_branches(case: Case) -> None:
    draws = 100_000
    assert case is not CASES[0] or (case.sums @ case.query < 0).any()
    probabilities = leaf_probabilities(case.phi, case.query, FLOOR, case.leaves, case.per_leaf)
    leaves, log_q = case.descend(np.sort(np.random.default_rng(5).random(draws)))
    assert (np.diff(leaves) >= 0).all()
    np.testing.assert_allclose(np.exp(log_q), probabilities[leaves], rtol=2e-4)
    counts = np.bincount(leaves, minlength=case.leaves)
    assert not counts[probabilities == 0].any()
    expected = draws * probabilities[probabilities > 0]
    freedom = len(expected) - 1
    chi = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
    assert chi < freedom + 5 * np.sqrt(2 * freedom) + 5
