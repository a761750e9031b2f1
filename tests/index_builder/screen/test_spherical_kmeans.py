import numpy as np
import pytest

from logitsieve.index_builder.config import ScreenConfig
from logitsieve.index_builder.screen import spherical_kmeans as module
from logitsieve.index_builder.screen.spherical_kmeans import spherical_kmeans
from tests.index_builder.clustered import make_contexts


def test_centroids_are_unit_vectors_near_the_topics_each_with_contexts() -> None:
    hidden_states = make_contexts(2000, topics=5, noise=0.05)
    centroids = spherical_kmeans(hidden_states, 20, ScreenConfig(), seed=1)
    np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, rtol=1e-5)
    cosines = hidden_states @ centroids.T / np.linalg.norm(hidden_states, axis=1, keepdims=True)
    assert cosines.max(axis=1).min() > 0.95
    # Also those that begin at one and the same place.
    hidden_states = np.concatenate(
        [np.tile(make_contexts(1), (900, 1)), make_contexts(300, seed=4)]
    )
    centroids = spherical_kmeans(hidden_states, 30, ScreenConfig(), seed=2)
    assert len(np.unique((hidden_states @ centroids.T).argmax(axis=1))) >= 28


def test_squares_that_overflow_and_directions_that_cancel_change_no_cluster() -> None:
    hidden_states = make_contexts(500, topics=5)
    config = ScreenConfig()
    plain, large = (
        spherical_kmeans(hidden_states * np.float32(scale), 5, config, seed=1)
        for scale in (1, 2.0**90)
    )
    np.testing.assert_allclose(large, plain, atol=1e-5)
    hidden_states = np.array([[1, 0], [-1, 0]], np.float32)
    centroids = spherical_kmeans(hidden_states, 1, ScreenConfig(kmeans_iterations=3), seed=0)
    np.testing.assert_allclose(np.abs(centroids), [[1, 0]])


def test_it_is_the_algorithm_in_float64() -> None:
    """Blocks, float32 and the order of sums change next to nothing."""
    hidden_states = make_contexts(3000, topics=7)
    hidden_states *= np.geomspace(0.01, 100, 3000, dtype=np.float32)[:, None]
    unit = hidden_states.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    centroids = unit[np.random.default_rng(5).permutation(3000)[:6]]
    for _ in range(4):
        cluster = (unit @ centroids.T).argmax(axis=1)
        centroids = np.stack([unit[cluster == number].sum(axis=0) for number in range(6)])
        centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    found = spherical_kmeans(hidden_states, 6, ScreenConfig(kmeans_iterations=4), seed=5)
    np.testing.assert_allclose(found, centroids, atol=1e-5)


def test_blocks_change_only_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden_states = make_contexts(2000)
    whole = spherical_kmeans(hidden_states, 10, ScreenConfig(), seed=3)
    monkeypatch.setattr(module, "BLOCK_ROWS", 300)
    found = spherical_kmeans(hidden_states, 10, ScreenConfig(), seed=3)
    np.testing.assert_allclose(found, whole, atol=1e-5)
