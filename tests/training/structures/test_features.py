import numpy as np
import pytest

from logitsieve.api.results import Float32, Float64
from logitsieve.training.structures.tree import FEATURES, QuadraticFeatures

NU = 1.0


def unit_vectors(count: int, dim: int, seed: int, mean: float = 0.0) -> Float32:
    vectors = np.random.default_rng(seed).normal(mean, 1, (count, dim)).astype(np.float32)
    unit: Float32 = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def gaussian(x: Float32, y: Float32, nu: float) -> Float64:
    distances = ((x.astype(float)[:, None] - y.astype(float)[None]) ** 2).sum(-1)
    kernel: Float64 = np.exp(-nu * distances / 2)
    return kernel


def errors(name: str, directions: int, dim: int = 12, seeds: int = 300) -> Float64:
    """[seeds, 6, 7] of estimate less kernel, each from features drawn anew."""
    x, y = unit_vectors(6, dim, 1, 0.3), unit_vectors(7, dim, 2, 0.3)
    kernel = gaussian(x, y, NU)
    phis = (FEATURES[name](dim, directions, NU, seed) for seed in range(100, 100 + seeds))
    return np.array([phi(x) @ phi(y).T - kernel for phi in phis])


def test_errors_of_features_fall_with_their_number() -> None:
    ratio = (errors("fourier", 32) ** 2).mean() / (errors("fourier", 512) ** 2).mean()
    assert 11 < ratio < 23  # 16
    structured, fourier = (errors(name, 16, dim=16) for name in ("structured", "fourier"))
    assert (structured**2).mean() < 0.9 * (fourier**2).mean()
    for name in ("fourier", "positive"):
        found = errors(name, 64)
        standard_error = found.std(0) / np.sqrt(len(found))
        assert (np.abs(found.mean(0)) < 4.5 * standard_error).all()
    assert (FEATURES["positive"](8, 16, 9.0, 0)(unit_vectors(50, 8, 3)) >= 0).all()
    small, large = (np.abs(errors("structured", 256, dim).mean(0)).max() for dim in (8, 128))
    assert large < 0.01
    assert large < small / 4


@pytest.mark.parametrize("directions", [1, 8, 11, 40])
def test_structured_features_of_any_number(directions: int) -> None:
    phi = FEATURES["structured"](5, directions, NU, 0)(unit_vectors(3, 5, 0))
    assert phi.shape == (3, 2 * directions)
    np.testing.assert_allclose((phi**2).sum(1), 1, rtol=1e-5)


def test_quadratic_features_are_exact_and_the_kernel_has_a_floor() -> None:
    generator = np.random.default_rng(5)
    x, y = (generator.standard_normal((n, 9)).astype(np.float32) for n in (4, 6))
    phi = QuadraticFeatures(9, 100.0)
    np.testing.assert_allclose(phi(x) @ phi(y).T, 100 * (x @ y.T) ** 2 + 1, rtol=1e-4)
    vector, fourier = unit_vectors(1, 8, 1), FEATURES["fourier"](8, 4, NU, 0)
    assert gaussian(vector, -vector, NU)[0, 0] == pytest.approx(fourier.floor)


@pytest.mark.parametrize("name", FEATURES)
def test_what_was_drawn_can_be_kept(name: str) -> None:
    one, other = (FEATURES[name](6, 10, NU, seed) for seed in (1, 2))
    vectors = unit_vectors(3, 6, 0)
    assert not np.array_equal(one(vectors), other(vectors))
    other.drawn = one.drawn
    np.testing.assert_array_equal(one(vectors), other(vectors))
