"""Dot products: bit for bit the definition in float64, within the bound in float32."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.dots import (
    dot64,
    dots64_2x1,
    dots64_2x2,
    dots_1x4,
    dots_4x4_at_once,
    dots_4x4_in_quarters,
    padded,
    row_of,
    widen_row,
)
from logitsieve.kernels.simd.pointers import keep_alive, pointer
from tests.oracle import dot64 as oracle_dot64


@kernel("(float32[:,::1], float32[::1], float64[::1])")
def every_dot64(weight, hidden, out):
    dim = hidden.size
    scratch = np.empty(padded(dim), np.float64)
    norm = widen_row(pointer(hidden), pointer(scratch), dim)
    for row in range(out.size):
        out[row] = dot64(row_of(pointer(weight), row, dim), pointer(scratch), dim)
    keep_alive(scratch)
    return norm


@kernel("(float32[:,::1], float32[::1], float64[:,::1])")
def pairs64(weight, hidden, out):
    """Rows 0 and 1 with one query, then both with it and with itself again."""
    dim = hidden.size
    scratch = np.empty(padded(dim), np.float64)
    h = pointer(scratch)
    widen_row(pointer(hidden), h, dim)
    first, second = row_of(pointer(weight), 0, dim), row_of(pointer(weight), 1, dim)
    out[0, 0], out[0, 1] = dots64_2x1(first, second, h, dim)
    one, other = dots64_2x2(first, second, h, h, dim)
    out[1, 0], out[1, 1] = one[0], other[0]
    out[2, 0], out[2, 1] = one[1], other[1]
    keep_alive(scratch)


@kernel("(float32[:,::1], float32[:,::1], float32[:,::1], float32[:,::1])")
def four_by_four(weight, hidden, blocked, single):
    dim = hidden.shape[1]
    w, h = pointer(weight), pointer(hidden)
    rows = 0, dim, 2 * dim, 3 * dim
    block = dots_4x4_at_once(w, *rows, h, *rows, dim)
    quarters = dots_4x4_in_quarters(w, *rows, h, *rows, dim)
    for q in range(4):
        line = dots_1x4(w, 0, dim, 2 * dim, 3 * dim, row_of(h, q, dim), dim)
        for i in range(4):
            single[i, q] = line[i]
    for q in range(4):
        blocked[0, q], blocked[1, q] = block[0][q], block[1][q]
        blocked[2, q], blocked[3, q] = block[2][q], block[3][q]
        blocked[4, q], blocked[5, q] = quarters[0][q], quarters[1][q]
        blocked[6, q], blocked[7, q] = quarters[2][q], quarters[3][q]


@given(dim=st.integers(1, 130), exponent=st.integers(-30, 30), seed=st.integers(0, 2**32 - 1))
def test_dot64_is_its_definition_bit_for_bit(dim: int, exponent: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    weight = (random.standard_normal((5, dim)) * 2.0**exponent).astype(np.float32)
    hidden = random.standard_normal(dim).astype(np.float32)
    out = np.empty(5)
    norm = every_dot64(weight, hidden, out)
    np.testing.assert_array_equal(out, oracle_dot64(weight, hidden))
    pairs = np.empty((3, 2))
    pairs64(weight, hidden, pairs)
    np.testing.assert_array_equal(pairs, np.tile(out[:2], (3, 1)))
    assert norm == pytest.approx(float((hidden.astype(np.float64) ** 2).sum()), rel=1e-12)


@pytest.mark.parametrize("dim", [1, 7, 15, 16, 17, 31, 33, 64, 200, 1500])
def test_float32_dots_stay_within_the_bound(dim: int) -> None:
    random = np.random.default_rng(dim)
    weight = random.standard_normal((4, dim)).astype(np.float32)
    hidden = random.standard_normal((4, dim)).astype(np.float32)
    both, single = np.empty((8, 4), np.float32), np.empty((4, 4), np.float32)
    four_by_four(weight, hidden, both, single)
    blocked, quarters = both[:4], both[4:]
    np.testing.assert_array_equal(quarters, blocked)
    true = weight.astype(np.float64) @ hidden.astype(np.float64).T
    norms = np.linalg.norm(weight, axis=1)[:, None] * np.linalg.norm(hidden, axis=1)
    assert (np.abs(blocked - true) <= dim * 2.0**-24 * norms * 1.01).all()
    assert (np.abs(single - true) <= dim * 2.0**-24 * norms * 1.01).all()


def test_values_after_the_end_of_a_row_are_not_read() -> None:
    dim = 5
    padding = np.full((8, dim), np.nan, np.float32)
    padding[:4] = 1.0
    hidden = np.full((5, dim), np.nan, np.float32)
    hidden[:4] = 2.0
    blocked, single = np.empty((8, 4), np.float32), np.empty((4, 4), np.float32)
    four_by_four(padding, hidden, blocked, single)
    assert (blocked == 10.0).all()
    assert (single == 10.0).all()
