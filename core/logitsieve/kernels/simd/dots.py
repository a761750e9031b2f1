"""Dot products of rows: float32 ones to choose by, and `dot64`, which defines every answer.

Rows that are read together are best far apart: a CPU predicts four streams. W and H are float32
rows, H64 rows in float64, each padded with zeros to a multiple of 16.
"""

import numpy as np

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.lanes import (
    AVX512,
    LANES,
    load,
    load_first,
    multiply_add,
    pair_sum,
    pair_sums_of_four,
    splat_like,
    store,
    sums_of_four,
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.pointers import shift


@inline
def padded(dim):
    return (dim + LANES - 1) // LANES * LANES


@inline
def pad_lanes(values, count):
    """Write -inf after values[:count], up to whole lanes; return the padded count."""
    for i in range(count, padded(count)):
        values[i] = -np.inf
    return padded(count)


@inline
def dot64(W, H64, dim):
    """One row of W times one of H64, in the order that defines an exact logit.

    Sixteen float64 sums, element d in sum d mod 16, then adjacent sums added in pairs. Products are
    exact, so fused multiply-add changes nothing.
    """
    total = zeros64()
    end = dim - dim % LANES
    for d in range(0, end, LANES):
        total = multiply_add(widen(load(W, d)), load(H64, d), total)
    if end < dim:
        total = multiply_add(widen(load_first(W, end, dim - end)), load(H64, end), total)
    return pair_sum(total)


@inline
def dots64_2x2(W, other_W, h, other_h, dim):
    """`dot64` of two rows of W with two of H64, bit for bit; a tuple for each row of W."""
    s0, s1, s2, s3 = zeros64(), zeros64(), zeros64(), zeros64()
    end = dim - dim % LANES
    for d in range(0, end, LANES):
        w, x, y = widen(load(W, d)), load(h, d), load(other_h, d)
        s0, s1 = multiply_add(w, x, s0), multiply_add(w, y, s1)
        w = widen(load(other_W, d))
        s2, s3 = multiply_add(w, x, s2), multiply_add(w, y, s3)
    if end < dim:
        n = dim - end
        w, x, y = widen(load_first(W, end, n)), load(h, end), load(other_h, end)
        s0, s1 = multiply_add(w, x, s0), multiply_add(w, y, s1)
        w = widen(load_first(other_W, end, n))
        s2, s3 = multiply_add(w, x, s2), multiply_add(w, y, s3)
    sums = pair_sums_of_four(s0, s1, s2, s3)
    return (sums[0], sums[1]), (sums[2], sums[3])


@inline
def dots64_2x1(W, other_W, h, dim):
    s0, s1 = zeros64(), zeros64()
    end = dim - dim % LANES
    for d in range(0, end, LANES):
        x = load(h, d)
        s0 = multiply_add(widen(load(W, d)), x, s0)
        s1 = multiply_add(widen(load(other_W, d)), x, s1)
    if end < dim:
        n, x = dim - end, load(h, end)
        s0 = multiply_add(widen(load_first(W, end, n)), x, s0)
        s1 = multiply_add(widen(load_first(other_W, end, n)), x, s1)
    return pair_sum(s0), pair_sum(s1)


@inline
def dots_1x4(W, i, j, k, m, h, dim):
    zero = splat_like(h, 0.0)
    s0, s1, s2, s3 = zero, zero, zero, zero
    end = dim - dim % LANES
    for d in range(0, end, LANES):
        x = load(h, d)
        s0 = multiply_add(load(W, i + d), x, s0)
        s1 = multiply_add(load(W, j + d), x, s1)
        s2 = multiply_add(load(W, k + d), x, s2)
        s3 = multiply_add(load(W, m + d), x, s3)
    if end < dim:
        n = dim - end
        x = load_first(h, end, n)
        s0 = multiply_add(load_first(W, i + end, n), x, s0)
        s1 = multiply_add(load_first(W, j + end, n), x, s1)
        s2 = multiply_add(load_first(W, k + end, n), x, s2)
        s3 = multiply_add(load_first(W, m + end, n), x, s3)
    return sums_of_four(s0, s1, s2, s3)


@inline
def outer(w, x0, x1, x2, x3, totals):
    return (
        multiply_add(w, x0, totals[0]),
        multiply_add(w, x1, totals[1]),
        multiply_add(w, x2, totals[2]),
        multiply_add(w, x3, totals[3]),
    )


@inline
def dots_4x4_at_once(W, i, j, k, m, H, r0, r1, r2, r3, dim):
    """Keep sixteen sums in registers: each value loaded is used four times."""
    s0 = (zeros32(), zeros32(), zeros32(), zeros32())
    s1, s2, s3 = s0, s0, s0
    end = dim - dim % LANES
    for d in range(0, end, LANES):
        x0, x1, x2, x3 = load(H, r0 + d), load(H, r1 + d), load(H, r2 + d), load(H, r3 + d)
        s0 = outer(load(W, i + d), x0, x1, x2, x3, s0)
        s1 = outer(load(W, j + d), x0, x1, x2, x3, s1)
        s2 = outer(load(W, k + d), x0, x1, x2, x3, s2)
        s3 = outer(load(W, m + d), x0, x1, x2, x3, s3)
    if end < dim:
        n = dim - end
        x0, x1 = load_first(H, r0 + end, n), load_first(H, r1 + end, n)
        x2, x3 = load_first(H, r2 + end, n), load_first(H, r3 + end, n)
        s0 = outer(load_first(W, i + end, n), x0, x1, x2, x3, s0)
        s1 = outer(load_first(W, j + end, n), x0, x1, x2, x3, s1)
        s2 = outer(load_first(W, k + end, n), x0, x1, x2, x3, s2)
        s3 = outer(load_first(W, m + end, n), x0, x1, x2, x3, s3)
    return (
        sums_of_four(s0[0], s0[1], s0[2], s0[3]),
        sums_of_four(s1[0], s1[1], s1[2], s1[3]),
        sums_of_four(s2[0], s2[1], s2[2], s2[3]),
        sums_of_four(s3[0], s3[1], s3[2], s3[3]),
    )


@inline
def dots_4x4_in_quarters(W, i, j, k, m, H, r0, r1, r2, r3, dim):
    upper = _dots_2x2(W, i, j, H, r0, r1, dim)
    upper_right = _dots_2x2(W, i, j, H, r2, r3, dim)
    lower = _dots_2x2(W, k, m, H, r0, r1, dim)
    lower_right = _dots_2x2(W, k, m, H, r2, r3, dim)
    return (
        (upper[0], upper[1], upper_right[0], upper_right[1]),
        (upper[2], upper[3], upper_right[2], upper_right[3]),
        (lower[0], lower[1], lower_right[0], lower_right[1]),
        (lower[2], lower[3], lower_right[2], lower_right[3]),
    )


@inline
def _dots_2x2(W, i, j, H, r0, r1, dim):
    s0, s1, s2, s3 = zeros32(), zeros32(), zeros32(), zeros32()
    end = dim - dim % LANES
    for d in range(0, end, LANES):
        x0, x1, w0, w1 = load(H, r0 + d), load(H, r1 + d), load(W, i + d), load(W, j + d)
        s0, s1 = multiply_add(w0, x0, s0), multiply_add(w0, x1, s1)
        s2, s3 = multiply_add(w1, x0, s2), multiply_add(w1, x1, s3)
    if end < dim:
        n = dim - end
        x0, x1 = load_first(H, r0 + end, n), load_first(H, r1 + end, n)
        w0, w1 = load_first(W, i + end, n), load_first(W, j + end, n)
        s0, s1 = multiply_add(w0, x0, s0), multiply_add(w0, x1, s1)
        s2, s3 = multiply_add(w1, x0, s2), multiply_add(w1, x1, s3)
    return sums_of_four(s0, s1, s2, s3)


dots_4x4 = dots_4x4_at_once if AVX512 else dots_4x4_in_quarters
"""float32 dots of the rows of H at offsets r0 .. r3 with the rows of W at i, j, k, m.

Four tuples, one for each row of W, of the four rows of H; the same bits on every CPU.
"""


@inline
def widen_row(h, h64, dim):
    """Copy one row to float64, padded with zeros; return its squared norm."""
    total = zeros64()
    end = dim - dim % LANES
    for d in range(0, end, LANES):
        x = widen(load(h, d))
        total = multiply_add(x, x, total)
        store(h64, d, x)
    if end < dim:
        x = widen(load_first(h, end, dim - end))
        total = multiply_add(x, x, total)
        store(h64, end, x)
    return pair_sum(total)


@inline
def row_of(start, row, dim):
    return shift(start, row * dim)


@inline
def four_from(i, last, delta=1):
    """Four places from i on, `apart` from each other; from `last` on, the one before it."""
    return i, min(i + delta, last - 1), min(i + 2 * delta, last - 1), min(i + 3 * delta, last - 1)
