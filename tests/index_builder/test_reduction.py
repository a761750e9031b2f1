import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index_builder.reduction import (
    COSINE,
    HEADROOM,
    MIPS,
    RANGED,
    Reduction,
    best_beta,
    squared_norms,
)
from tests.synthetic import make_hidden, make_softmax


def test_beta_minimises_the_product_of_norms() -> None:
    softmax = make_softmax()
    squares, bias = squared_norms(softmax), softmax.bias.astype(np.float64)
    power = 7.0
    beta = best_beta(squares, bias, power)
    x = beta**2 * np.geomspace(1e-3, 1e3, 2001)
    badness = (squares[:, None] + bias[:, None] ** 2 / x).max(axis=0) * (power + x)
    least = (squares + bias**2 / beta**2).max() * (power + beta**2)
    assert least <= badness.min() * (1 + 1e-9)
    assert best_beta(squares, np.zeros_like(bias), power) == 1.0


@pytest.mark.parametrize("ranges", [COSINE, MIPS, RANGED])
def test_vectors_of_one_length_that_keep_the_order_of_logits(ranges: int) -> None:
    softmax, beta = make_softmax(), 0.7
    reduction = Reduction.of(softmax, squared_norms(softmax), ranges, beta)
    rows = np.arange(softmax.vocab_size)
    vectors = reduction.vectors(rows)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(reduction.vectors(rows[40:50]), vectors[40:50])
    hidden_states = make_hidden(9)
    lifted = np.concatenate([hidden_states, np.full((9, 1), beta), np.zeros((9, 1))], axis=1)
    logits = hidden_states @ softmax.weight.T + softmax.bias
    np.testing.assert_allclose(lifted @ vectors.T * reduction.largest, logits, atol=1e-4)
    if ranges == COSINE:
        assert not vectors[:, -1].any()
    else:
        assert len(np.unique(reduction.largest)) == ranges
    if ranges == MIPS:
        np.testing.assert_allclose(reduction.largest, HEADROOM * reduction.norms.max())


@pytest.mark.parametrize("scale", [1e-30, 1e15])
def test_scales_do_not_matter(scale: float) -> None:
    softmax = make_softmax()
    scaled = Softmax(
        (softmax.weight * scale).astype(np.float32), (softmax.bias * scale).astype(np.float32)
    )
    for ranges in (COSINE, MIPS, RANGED):
        first = Reduction.of(softmax, squared_norms(softmax), ranges, 1.0)
        other = Reduction.of(scaled, squared_norms(scaled), ranges, 1.0)
        rows = np.arange(softmax.vocab_size)
        np.testing.assert_allclose(first.vectors(rows), other.vectors(rows), atol=1e-6)


def test_a_softmax_of_zeros_has_vectors() -> None:
    softmax = Softmax(np.zeros((5, 3), np.float32), np.zeros(5, np.float32))
    squares = squared_norms(softmax)
    beta = best_beta(squares, softmax.bias.astype(np.float64), 1.0)
    for ranges in (COSINE, MIPS, RANGED):
        vectors = Reduction.of(softmax, squares, ranges, beta).vectors(np.arange(5))
        assert np.isfinite(vectors).all()
