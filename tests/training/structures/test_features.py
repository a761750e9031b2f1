"""Feature maps against the kernels that they stand for."""

from math import factorial

import numpy as np
import pytest

from logitsieve.api.results import Float32, Float64
from logitsieve.training.structures.tree import (
    FEATURES,
    QuadraticFeatures,
    RandomFourier,
    StructuredFourier,
)

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


def test_estimates_of_the_kernel_have_no_bias() -> None:
    found = errors("fourier", 64)
    standard_error = found.std(0) / np.sqrt(len(found))
    assert (np.abs(found.mean(0)) < 4.5 * standard_error).all()


def test_structured_directions_have_a_bias_that_falls_with_the_dimension() -> None:
    small, large = (np.abs(errors("structured", 256, dim).mean(0)).max() for dim in (8, 128))
    assert large < 0.01
    assert large < small / 4


def test_the_squared_error_falls_as_one_over_r() -> None:
    ratio = (errors("fourier", 32) ** 2).mean() / (errors("fourier", 512) ** 2).mean()
    assert 11 < ratio < 23  # 16


def test_orthogonal_directions_leave_less_error() -> None:
    structured, fourier = (errors(name, 16, dim=16) for name in ("structured", "fourier"))
    assert (structured**2).mean() < 0.9 * (fourier**2).mean()


def test_the_kernel_is_never_below_its_floor() -> None:
    vector = unit_vectors(1, 8, 1)
    assert gaussian(vector, -vector, NU)[0, 0] == pytest.approx(RandomFourier(8, 4, NU, 0).floor)


@pytest.mark.parametrize("directions", [1, 8, 11, 40])
def test_structured_features_of_any_number(directions: int) -> None:
    phi = StructuredFourier(5, directions, NU, 0)(unit_vectors(3, 5, 0))
    assert phi.shape == (3, 2 * directions)
    np.testing.assert_allclose((phi**2).sum(1), 1, rtol=1e-5)


def test_quadratic_features_are_exact() -> None:
    generator = np.random.default_rng(5)
    x, y = (generator.standard_normal((n, 9)).astype(np.float32) for n in (4, 6))
    phi = QuadraticFeatures(9, 100.0)
    np.testing.assert_allclose(phi(x) @ phi(y).T, 100 * (x @ y.T) ** 2 + 1, rtol=1e-4)


@pytest.mark.parametrize("name", FEATURES)
def test_what_was_drawn_can_be_kept(name: str) -> None:
    one, other = (FEATURES[name](6, 10, NU, seed) for seed in (1, 2))
    vectors = unit_vectors(3, 6, 0)
    assert not np.array_equal(one(vectors), other(vectors))
    other.drawn = one.drawn
    np.testing.assert_array_equal(one(vectors), other(vectors))


def maclaurin(dim: int, size: int, generator: np.random.Generator) -> list[Float64]:
    """Random directions of Kar, Karnick 2012 for e^{x.y}: one list of signs [N, D] a feature."""
    degrees = generator.geometric(0.5, size) - 1
    return [(generator.integers(0, 2, (n, dim)) * 2 - 1).astype(np.float64) for n in degrees]


def maclaurin_features(vectors: Float32, signs: list[Float64]) -> Float64:
    factors = [np.sqrt(2.0 ** (len(own) + 1) / factorial(len(own))) for own in signs]
    columns = [
        factor * np.prod(vectors.astype(float) @ own.T, axis=1)
        for factor, own in zip(factors, signs, strict=True)
    ]
    features: Float64 = np.array(columns).T / np.sqrt(len(signs))
    return features


def test_the_order_of_table_1() -> None:
    """Rawat et al., Table 1: e^{h.c} of unit vectors with D^2 features, where theirs is shown.

    Random Maclaurin features are the worst of that size. That a fitted quadratic form is worse than
    D^2 Fourier features holds for vectors in all directions, not for all data.
    """
    dim = 64
    x, y = unit_vectors(60, dim, 1), unit_vectors(60, dim, 2)
    dots = x.astype(float) @ y.T
    target = np.exp(dots)
    design = np.stack([dots.ravel() ** 2, np.ones(dots.size)], axis=1)
    fitted = design @ np.linalg.lstsq(design, target.ravel(), rcond=None)[0]
    mse = {"quadratic": ((fitted - target.ravel()) ** 2).mean()}
    for directions in (100, 1000, dim**2):
        phi = RandomFourier(dim, directions, 1.0, 100)
        mse[f"fourier {directions}"] = ((np.e * phi(x) @ phi(y).T - target) ** 2).mean()
    signs = maclaurin(dim, dim**2, np.random.default_rng(100))
    estimate = maclaurin_features(x, signs) @ maclaurin_features(y, signs).T
    mse["maclaurin"] = ((estimate - target) ** 2).mean()
    print(mse)
    assert mse["fourier 1000"] < mse["fourier 100"] / 5
    assert mse[f"fourier {dim**2}"] < mse["maclaurin"] / 2
    assert mse[f"fourier {dim**2}"] < mse["quadratic"] / 10
