import math

import numpy as np
import pytest
import torch
from torch import Tensor

from logitsieve.index_builder.config import ScreenConfig
from logitsieve.index_builder.screen.spherical_kmeans import spherical_kmeans
from logitsieve.index_builder.screen.training import (
    AGREEMENT,
    AVERAGED,
    Adam,
    MovingAverage,
    cluster_loss,
    gradient,
    softmax_gradient,
    train_centroids,
    trainable_scale,
)
from tests.index_builder.clustered import make_contexts

B, C, V, K, D = 7, 4, 30, 5, 6
WASTE, OVERRUN = 3e-4, 10.0


@pytest.fixture
def table() -> np.ndarray:
    return (np.random.default_rng(1).random((V, C)) < 0.4).astype(np.uint8)


@pytest.fixture
def labels() -> np.ndarray:
    random = np.random.default_rng(2)
    return np.stack([random.permutation(V)[:K] for _ in range(B)])


def by_definition(labels_BK: np.ndarray, table_VC: np.ndarray) -> Tensor:
    """Eq. 6 over all V labels, for every cluster."""
    y_BV = torch.zeros((B, V), dtype=torch.float64).scatter_(1, torch.from_numpy(labels_BK), 1.0)
    c_CV = torch.from_numpy(table_VC).T.double()
    missed = (y_BV[:, None] * (1 - c_CV) ** 2).sum(dim=2)
    wasted = ((1 - y_BV)[:, None] * c_CV**2).sum(dim=2)
    return missed + WASTE * wasted


def straight_through(scores_BC: Tensor, gumbel_BC: Tensor) -> Tensor:
    """pbar [B, C]: one-hot of the sampled cluster, with gradients of eq. 5 at temperature 1."""
    p_BC = torch.softmax(scores_BC + gumbel_BC, dim=1)
    one_hot_BC = torch.nn.functional.one_hot(p_BC.argmax(dim=1), C).double()
    return one_hot_BC + p_BC - p_BC.detach()


def test_the_closed_form_is_equation_6(labels: np.ndarray, table: np.ndarray) -> None:
    sizes = table.sum(axis=0, dtype=np.float32)
    found = cluster_loss(labels, table, sizes, WASTE)
    np.testing.assert_allclose(found, by_definition(labels, table), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("budget", [5.0, 1e6, math.inf])
def test_the_gradient_is_that_of_autograd_through_the_definition(
    labels: np.ndarray, table: np.ndarray, budget: float
) -> None:
    """Eq. 8 with the sum over V, on a first batch, which is all of the average."""
    random = np.random.default_rng(3)
    v, hidden_states, noise = (
        random.standard_normal(shape, np.float32) for shape in ((C, D), (B, D), (B, C))
    )
    sizes = table.sum(axis=0, dtype=np.float32)
    leaf = torch.from_numpy(v).double().requires_grad_()
    pbar = straight_through(
        torch.from_numpy(hidden_states).double() @ leaf.T, torch.from_numpy(noise)
    )
    mean = (pbar @ torch.from_numpy(sizes).double()).mean()
    value = (pbar * by_definition(labels, table)).sum() + OVERRUN * torch.relu(mean - budget)
    [expected] = torch.autograd.grad(value, leaf)
    loss = cluster_loss(labels, table, sizes, WASTE)
    found = gradient(v, hidden_states, noise, loss, sizes, MovingAverage(), budget, OVERRUN)
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-5)
    assert mean > 5
    assert np.abs(found).max() > 0.1


def test_the_gradient_of_the_softmax() -> None:
    random = np.random.default_rng(4)
    scores, weights = (torch.from_numpy(random.standard_normal((B, C))) for _ in range(2))
    p = torch.softmax(scores.requires_grad_(), dim=1)
    [expected] = torch.autograd.grad((p * weights).sum(), scores)
    found = softmax_gradient(p.detach().numpy(), weights.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_average_moves_slowly() -> None:
    average = MovingAverage()
    assert average.add(10.0) == 10
    assert average.add(20.0) == pytest.approx(AVERAGED * 10 + (1 - AVERAGED) * 20)


@pytest.mark.parametrize(("past", "counted"), [(9.0, False), (10.0, True)])
def test_only_an_average_over_the_budget_costs(past: float, counted: bool) -> None:
    """The batch has 20 candidates a row, but the average moves from `past` by a hundredth."""
    average = MovingAverage()
    average.add(past)
    sizes, zeros = np.array([20, 2], np.float32), np.zeros((1, 2), np.float32)
    hidden_states, v = np.ones((1, 1), np.float32), np.array([[1], [0]], np.float32)
    found = gradient(v, hidden_states, zeros, zeros, sizes, average, 10.0, OVERRUN)
    assert bool(found.any()) == counted


def test_training_routes_better_and_is_repeatable() -> None:
    """Two topics, both routed to cluster 0 whose list holds the labels of the first only."""
    random = np.random.default_rng(6)
    hidden_states = random.standard_normal((400, 8)).astype(np.float32) * np.float32(0.2)
    hidden_states[:200, 0] += 1
    hidden_states[200:, 1] += 1
    labels = np.repeat([[0, 1], [2, 3]], 200, axis=0)
    table = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.uint8)
    start = np.zeros((2, 8), np.float32)
    start[0, :2] = 3.0
    config = ScreenConfig(steps=60, batch_rows=64)

    def missed(centroids: np.ndarray) -> float:
        cluster = (hidden_states @ centroids.T).argmax(axis=1)
        return float((cluster != np.repeat([0, 1], 200)).mean())

    before = start.copy()
    first, again = (
        train_centroids(start, hidden_states, labels, table, None, config, 7) for _ in "12"
    )
    assert missed(start) >= 0.4
    assert missed(first) < 0.1
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(start, before)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_samples_agree_with_the_argmax_in_nine_of_ten_cases(scale: float) -> None:
    hidden_states = make_contexts(3000) * np.float32(scale)
    centroids = spherical_kmeans(hidden_states, 12, ScreenConfig(), seed=1)
    scores = hidden_states @ centroids.T * trainable_scale(hidden_states, centroids)
    noise = np.random.default_rng(1).gumbel(size=scores.shape)
    agree = (scores + noise).argmax(axis=1) == scores.argmax(axis=1)
    assert agree.mean() == pytest.approx(AGREEMENT, abs=0.03)


def test_one_centroid_keeps_its_scale() -> None:
    hidden_states = make_contexts(50)
    assert (
        trainable_scale(hidden_states, spherical_kmeans(hidden_states, 1, ScreenConfig(), seed=1))
        == 1.0
    )


@pytest.mark.parametrize("hidden_states", [np.zeros((5, 3), np.float32), make_contexts(3)])
def test_degenerate_contexts_give_finite_centroids(hidden_states: np.ndarray) -> None:
    centroids = spherical_kmeans(hidden_states, 100, ScreenConfig(), seed=1)
    assert len(centroids) == len(hidden_states)
    assert np.isfinite(centroids).all()
    assert np.isfinite(trainable_scale(hidden_states, centroids))


def test_adam_makes_the_steps_of_torch() -> None:
    random = np.random.default_rng(0)
    own = random.standard_normal((C, V), np.float32)
    theirs = torch.from_numpy(own.copy()).requires_grad_()
    adam, reference = Adam(own, 0.03), torch.optim.Adam([theirs], lr=0.03)
    for _ in range(20):
        gradient_CV = random.standard_normal((C, V), np.float32)
        theirs.grad = torch.from_numpy(gradient_CV)
        adam.step(gradient_CV)
        reference.step()
    np.testing.assert_allclose(own, theirs.detach(), rtol=1e-5, atol=1e-6)
