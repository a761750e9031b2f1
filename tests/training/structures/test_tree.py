import numpy as np
import pytest
import torch
from torch import Tensor

from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.training.autograd.classes import LogitForm
from logitsieve.training.structures.tree import KernelTree, QuadraticFeatures, RandomFourier
from tests.refusals import refused

DIM, CLASSES = 8, 100
UNIT, ABSOLUTE = LogitForm(scale=6.0), LogitForm(absolute=True)
EVERY_FORM = pytest.mark.parametrize("form", [UNIT, ABSOLUTE])


def weights(seed: int = 0) -> Tensor:
    return torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(seed))


def tree_over(weight: Tensor, form: LogitForm = UNIT, leaf: int = 4, seed: int = 0) -> KernelTree:
    # So few random directions that many partial sums are negative.
    phi = QuadraticFeatures(DIM, 100.0) if form.absolute else RandomFourier(DIM, 6, 4.0, seed)
    tree = KernelTree(phi, DIM, len(weight), form, leaf)
    tree.rebuild(weight, None)
    return tree


def vectors(count: int, form: LogitForm = UNIT) -> Tensor:
    """Contexts as the kernel takes them: of length 1 with a scale."""
    hidden_states = torch.randn(count, DIM, generator=torch.Generator().manual_seed(9))
    return (
        hidden_states
        if form.scale is None
        else torch.nn.functional.normalize(hidden_states, dim=-1)
    )


def drawn(tree: KernelTree, contexts: Tensor, draws: int = 4000) -> tuple[Int64, Float64]:
    """Leaves and log q by evenly spread numbers."""
    return tree.draw(tree.mixture(contexts), (np.arange(draws) + 0.5) / draws)


def leaf_probabilities(tree: KernelTree, query: tuple[Float32, float]) -> Float64:
    """[L]: the product of the branches' probabilities, by recursion over ranges of leaves."""
    phi, floor = query
    masses = (tree.features(tree.rows.float().numpy()) @ phi).astype(np.float64)

    def mass(first: int, last: int) -> float:
        own = masses[first * tree.per_leaf : last * tree.per_leaf]
        return max(float(own.sum()), floor * len(own)) if len(own) else 0.0

    def share(first: int, last: int, probability: float) -> list[float]:
        if last - first == 1:
            return [probability]
        middle = (first + last) // 2
        left, right = mass(first, middle), mass(middle, last)
        each = probability / (left + right) if probability else 0.0
        return share(first, middle, each * left) + share(middle, last, each * right)

    return np.array(share(0, tree.leaves, 1.0))


@pytest.mark.parametrize(
    ("form", "classes", "leaf"),
    [
        (ABSOLUTE, CLASSES, 4),
        (UNIT, CLASSES, 4),
        (UNIT, 37, 5),  # the last leaf is short
        (UNIT, 9, 2),  # leaves without any class
        (UNIT, 5, 5),  # a leaf and no branch
    ],
)
def test_leaves_are_drawn_by_the_product_of_their_branches(
    form: LogitForm, classes: int, leaf: int
) -> None:
    tree, contexts = tree_over(weights()[:classes], form, leaf), vectors(3, form)
    query = tree.mixture(contexts)
    assert (form, classes) != (UNIT, CLASSES) or (tree.sums @ query[0] < 0).any()
    probabilities = leaf_probabilities(tree, query)
    leaves, log_q = drawn(tree, contexts)
    assert (np.diff(leaves) >= 0).all()
    np.testing.assert_allclose(np.exp(log_q), probabilities[leaves], rtol=1e-3)
    shares = np.bincount(leaves, minlength=tree.leaves) / len(leaves)
    np.testing.assert_allclose(shares, probabilities, atol=2 / len(leaves))


def test_the_mixture_is_the_mean_of_the_distributions_if_nothing_is_clipped() -> None:
    contexts, tree = vectors(5, ABSOLUTE), tree_over(weights(), ABSOLUTE)
    each = [leaf_probabilities(tree, tree.mixture(one[None])) for one in contexts]
    mean = leaf_probabilities(tree, tree.mixture(contexts))
    np.testing.assert_allclose(mean, np.mean(each, axis=0), rtol=1e-3)


@EVERY_FORM
def test_a_thousand_updates_equal_a_rebuilt_tree(form: LogitForm) -> None:
    weight = weights()
    tree, generator = tree_over(weight, form), torch.Generator().manual_seed(1)
    for _ in range(1000):
        rows = torch.randperm(CLASSES, generator=generator)[:5].sort().values
        weight[rows] += 0.1 * torch.randn(5, DIM, generator=generator)
        tree.update(rows, weight, None)
    rebuilt = tree_over(weight, form)
    assert torch.equal(tree.rows, rebuilt.rows)
    np.testing.assert_allclose(tree.sums, rebuilt.sums, rtol=1e-3, atol=1e-3)


def test_a_tree_rebuilds_and_counts_rows_of_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logitsieve.training.structures.tree.REBUILD_AFTER", 3)
    weight = weights()
    tree = tree_over(weight)
    tree.sums += 1
    for _ in range(3):
        tree.update(torch.tensor([2]), weight, None)
    np.testing.assert_array_equal(tree.sums, tree_over(weight).sums)
    assert tree.updates == 0
    weight = weights()
    weight[5] = 0
    leaves, log_q = drawn(tree_over(weight, leaf=1), vectors(1))
    assert np.isfinite(log_q).all()
    assert 5 in leaves


def test_the_state_is_all_that_draws_depend_on() -> None:
    one, other = tree_over(weights()), tree_over(weights(8), seed=5)
    other.load_state_dict(one.state_dict())
    for tree in (one, other):
        tree.update(torch.tensor([1, 7]), weights(4), None)
    np.testing.assert_equal(drawn(one, vectors(2)), drawn(other, vectors(2)))
    # Sums of one leaf would fit into those of any number.
    one, other = tree_over(weights(), leaf=CLASSES), tree_over(weights())
    more = KernelTree(RandomFourier(DIM, 7, 4.0, 0), DIM, CLASSES, UNIT, 4)
    for state in (one.state_dict(), more.state_dict()):
        with refused("state_dict", "sums"):
            other.load_state_dict(state)
