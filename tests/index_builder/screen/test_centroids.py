import numpy as np
import pytest
import torch
from torch import Tensor

from logitsieve.index_builder.config import ScreenConfig
from logitsieve.index_builder.screen.centroids import (
    AGREEMENT,
    AVERAGED,
    Adam,
    MovingAverage,
    cluster_loss,
    objective,
    straight_through,
    train_centroids,
    trainable_scale,
)
from logitsieve.index_builder.screen.spherical_kmeans import spherical_kmeans
from tests.index_builder.clustered import make_contexts

B, C, V, K = 7, 4, 30, 5
WASTE = 3e-4


@pytest.fixture
def table() -> Tensor:
    return (torch.rand((V, C), generator=torch.Generator().manual_seed(1)) < 0.4).to(torch.uint8)


@pytest.fixture
def labels() -> Tensor:
    random = np.random.default_rng(2)
    return torch.from_numpy(np.stack([random.permutation(V)[:K] for _ in range(B)]))


def by_definition(labels_BK: Tensor, table_VC: Tensor) -> Tensor:
    """Eq. 6 over all V labels, for every cluster."""
    y_BV = torch.zeros((B, V), dtype=torch.float64).scatter_(1, labels_BK, 1.0)
    c_CV = table_VC.T.double()
    missed = (y_BV[:, None] * (1 - c_CV) ** 2).sum(dim=2)
    wasted = ((1 - y_BV)[:, None] * c_CV**2).sum(dim=2)
    return missed + WASTE * wasted


def test_the_closed_form_is_equation_6(labels: Tensor, table: Tensor) -> None:
    sizes = table.sum(dim=0, dtype=torch.float32)
    found = cluster_loss(labels, table, sizes, WASTE)
    torch.testing.assert_close(found.double(), by_definition(labels, table), atol=1e-6, rtol=1e-6)


def test_gradients_are_those_of_the_definition(labels: Tensor, table: Tensor) -> None:
    """The objective's gradient against autograd through the sum over V."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn((B, C), generator=generator)
    noise = torch.randn((B, C), generator=generator)
    sizes = table.sum(dim=0, dtype=torch.float32)
    gradients = []
    for loss in (cluster_loss(labels, table, sizes, WASTE), by_definition(labels, table).float()):
        leaf = scores.clone().requires_grad_()
        pbar = straight_through(leaf, noise)
        average = MovingAverage().add((pbar @ sizes).mean())
        value = objective(pbar, loss, average, 5.0, 10.0)
        gradients.append(torch.autograd.grad(value, leaf)[0])
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-5)
    assert gradients[0].abs().max() > 0


def test_straight_through_is_one_hot_with_the_gradient_of_the_softmax() -> None:
    scores = torch.randn((B, C), generator=torch.Generator().manual_seed(4)).requires_grad_()
    weights = torch.randn((B, C), generator=torch.Generator().manual_seed(5))
    noise = torch.zeros((B, C))
    pbar = straight_through(scores, noise)
    one_hot = torch.nn.functional.one_hot(scores.argmax(dim=1), C).float()
    torch.testing.assert_close(pbar.detach(), one_hot)
    found = torch.autograd.grad((pbar * weights).sum(), scores)[0]
    soft = (torch.softmax(scores, dim=1) * weights).sum()
    torch.testing.assert_close(found, torch.autograd.grad(soft, scores)[0])


def test_the_average_moves_slowly_but_its_gradient_is_the_batch_s() -> None:
    average = MovingAverage()
    assert float(average.add(torch.tensor(10.0))) == 10
    batch = torch.tensor(20.0, requires_grad=True)
    value = average.add(batch)
    assert float(value.detach()) == pytest.approx(AVERAGED * 10 + (1 - AVERAGED) * 20)
    assert float(torch.autograd.grad(value, batch)[0]) == 1.0
    hidden = make_contexts(50)
    assert trainable_scale(hidden, spherical_kmeans(hidden, 1, ScreenConfig(), seed=1)) == 1.0


@pytest.mark.parametrize(("average", "expected"), [(9.0, 0.0), (12.0, 20.0)])
def test_only_candidates_over_the_budget_cost(average: float, expected: float) -> None:
    none = torch.zeros((B, C))
    assert float(objective(none, none, torch.tensor(average), 10.0, 10.0)) == expected


def test_training_routes_better_and_is_repeatable() -> None:
    """Two topics, both routed to cluster 0 whose list holds the labels of the first only."""
    random = np.random.default_rng(6)
    hidden = random.standard_normal((400, 8)).astype(np.float32) * 0.2
    hidden[:200, 0] += 1
    hidden[200:, 1] += 1
    labels = np.repeat([[0, 1], [2, 3]], 200, axis=0)
    table = torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=torch.uint8)
    start = torch.zeros((2, 8))
    start[0, :2] = 3.0
    config = ScreenConfig(steps=60, batch_rows=64)
    arguments = (torch.from_numpy(hidden), torch.from_numpy(labels), table, None, config, 7)

    def missed(centroids: Tensor) -> float:
        cluster = (torch.from_numpy(hidden) @ centroids.T).argmax(dim=1)
        wanted = torch.from_numpy(np.repeat([0, 1], 200))
        return float((cluster != wanted).float().mean())

    first, again = (train_centroids(start, *arguments) for _ in range(2))
    assert missed(start) >= 0.4
    assert missed(first) < 0.1
    torch.testing.assert_close(first, again, rtol=0, atol=0)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_samples_agree_with_the_argmax_in_nine_of_ten_cases(scale: float) -> None:
    hidden = make_contexts(3000) * np.float32(scale)
    centroids = spherical_kmeans(hidden, 12, ScreenConfig(), seed=1)
    scores = torch.from_numpy(hidden) @ torch.from_numpy(centroids).T
    scores = scores * trainable_scale(hidden, centroids)
    noise = torch.empty_like(scores).exponential_(generator=torch.Generator().manual_seed(1))
    agree = (scores - noise.log()).argmax(dim=1) == scores.argmax(dim=1)
    assert float(agree.float().mean()) == pytest.approx(AGREEMENT, abs=0.03)


@pytest.mark.parametrize("hidden", [np.zeros((5, 3), np.float32), make_contexts(3)])
def test_degenerate_contexts_give_finite_centroids(hidden: np.ndarray) -> None:
    centroids = spherical_kmeans(hidden, 100, ScreenConfig(), seed=1)
    assert len(centroids) == len(hidden)
    assert np.isfinite(centroids).all()
    assert np.isfinite(trainable_scale(hidden, centroids))


def test_adam_makes_the_steps_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn((C, V), generator=generator)
    own, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    adam, reference = Adam(own, 0.03), torch.optim.Adam([theirs], lr=0.03)
    for _ in range(20):
        own.grad = torch.randn((C, V), generator=generator)
        theirs.grad = own.grad.clone()
        adam.step()
        reference.step()
    assert torch.equal(own, theirs)
