from __future__ import annotations

import numpy as np
import pytest
import torch

from logitsieve.index_builder.config import ScreenConfig
from logitsieve.index_builder.kmeans import AGREEMENT, spherical_kmeans, trainable_scale
from tests.index_builder.clustered import make_contexts

CONFIG = ScreenConfig()


def test_centroids_are_unit_vectors_near_the_topics() -> None:
    hidden = make_contexts(2000, topics=5, noise=0.05)
    centroids = spherical_kmeans(hidden, 20, CONFIG, seed=1)
    np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, rtol=1e-5)
    cosines = hidden @ centroids.T / np.linalg.norm(hidden, axis=1, keepdims=True)
    assert cosines.max(axis=1).min() > 0.95


def test_squares_that_overflow_change_no_cluster() -> None:
    hidden = make_contexts(500, topics=5)
    plain, large = (
        spherical_kmeans(hidden * np.float32(scale), 5, CONFIG, seed=1) for scale in (1, 2.0**90)
    )
    np.testing.assert_allclose(large, plain, atol=1e-5)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_samples_agree_with_the_argmax_in_nine_of_ten_cases(scale: float) -> None:
    hidden = make_contexts(3000) * np.float32(scale)
    centroids = spherical_kmeans(hidden, 12, CONFIG, seed=1)
    scores = torch.from_numpy(hidden) @ torch.from_numpy(centroids).T
    scores = scores * trainable_scale(hidden, centroids)
    noise = torch.empty_like(scores).exponential_(generator=torch.Generator().manual_seed(1))
    agree = (scores - noise.log()).argmax(dim=1) == scores.argmax(dim=1)
    assert float(agree.float().mean()) == pytest.approx(AGREEMENT, abs=0.03)


@pytest.mark.parametrize("hidden", [np.zeros((5, 3), np.float32), make_contexts(3)])
def test_degenerate_contexts_give_finite_centroids(hidden: np.ndarray) -> None:
    centroids = spherical_kmeans(hidden, 100, CONFIG, seed=1)
    assert len(centroids) == len(hidden)
    assert np.isfinite(centroids).all()
    assert np.isfinite(trainable_scale(hidden, centroids))


def test_one_cluster_needs_no_scale() -> None:
    hidden = make_contexts(50)
    assert trainable_scale(hidden, spherical_kmeans(hidden, 1, CONFIG, seed=1)) == 1.0
