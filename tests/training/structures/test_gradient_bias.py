"""The bias of the sampled softmax's gradient, by enumeration of all draws.

Rawat et al. 2019, Sampled Softmax with Random Fourier Features, Theorems 1 and 2.

With V classes beside the target and m draws, what matters of a draw is how often it has each class:
the expectation is a sum over all counts that add up to m, each with its multinomial probability.
"""

from itertools import combinations
from math import lgamma

import numpy as np
import pytest

from logitsieve.api.results import Float32, Float64
from logitsieve.training.structures.tree import RandomFourier

SCALE, NU = 4.0, 2.0


def compositions(total: int, parts: int) -> Float64:
    """All rows of `parts` counts that add up to `total`."""
    bars = np.array(list(combinations(range(total + parts - 1), parts - 1)))
    edges = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, total + parts - 1)))
    return (np.diff(edges, axis=1) - 1).astype(float)


def bias(x: Float64, q: Float64, m: int) -> float:
    """|E[gradient] - gradient| in the logits: the first is the target's, and is not drawn."""
    counts = compositions(m, len(q))
    factorials = np.array([lgamma(n + 1) for n in range(m + 1)])
    log_p = factorials[m] - factorials[counts.astype(int)].sum(1) + counts @ np.log(q)
    terms = np.column_stack([np.full(len(counts), np.exp(x[0])), counts * np.exp(x[1:]) / (m * q)])
    mean = np.exp(log_p) @ (terms / terms.sum(1, keepdims=True))
    return float(np.abs(mean - np.exp(x) / np.exp(x).sum()).sum())


def unit_vectors(seed: int, count: int, dim: int = 8) -> Float32:
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    unit: Float32 = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


CONTEXT, ROWS = unit_vectors(1, 1), unit_vectors(2, 5)
COSINES = (ROWS @ CONTEXT.T)[:, 0].astype(float)
LOGITS = SCALE * COSINES


def normalised(masses: Float64) -> Float64:
    shares: Float64 = masses / masses.sum()
    return shares


def fourier_law(directions: int, seed: int) -> Float64:
    phi = RandomFourier(8, directions, NU, seed)
    estimates = (phi(ROWS[1:]) @ phi(CONTEXT).T)[:, 0].astype(float)
    return normalised(np.maximum(estimates, phi.floor))


def kernel_law() -> Float64:
    return normalised(np.exp(NU * COSINES[1:]))


def test_compositions_are_all_there_are() -> None:
    assert compositions(3, 2).tolist() == [[0, 3], [1, 2], [2, 1], [3, 0]]
    assert len(compositions(6, 4)) == 84


@pytest.mark.parametrize("m", [1, 2, 8])
def test_draws_from_the_softmax_itself_have_none(m: int) -> None:
    assert bias(LOGITS, normalised(np.exp(LOGITS[1:])), m) < 1e-12


@pytest.mark.parametrize("q", [np.full(4, 0.25), kernel_law()], ids=["uniform", "kernel"])
def test_it_falls_as_one_over_m(q: Float64) -> None:
    assert bias(LOGITS, q, 30) / bias(LOGITS, q, 60) == pytest.approx(2, rel=0.1)


def test_with_more_features_it_tends_to_that_of_the_kernel_not_to_zero() -> None:
    limit = bias(LOGITS, kernel_law(), 4)
    distances = [
        np.mean([abs(bias(LOGITS, fourier_law(size, seed), 4) - limit) for seed in range(100, 120)])
        for size in (32, 512, 8192)
    ]
    assert distances[1] < distances[0] / 2
    assert distances[2] < distances[1] / 2
    assert limit > 20 * distances[2] > 0
