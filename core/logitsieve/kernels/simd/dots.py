"""Dot products of rows: float32 ones to choose by, and `dot64`, which every answer is made of.

Rows that are read from memory together are best far apart, each the next of a stream of its own:
a CPU foresees four streams, but hardly what jumps between neighbouring rows.

Shape letters: D hidden size. W is float32 rows of D, H float32 rows of D, H64 the same rows in
float64, each padded with zeros to a multiple of 16.
"""

from __future__ import annotations

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
    """D rounded up to whole lanes."""
    return (dim + LANES - 1) // LANES * LANES


@inline
def dot64(W, H64, dim):
    """One row of W (float32) times one of H64, in the order that defines an exact logit.

    Sixteen float64 sums, element d in sum d mod 16, then adjacent sums added in pairs. A product of
    two float32 is exact in float64, so the result does not depend on fused multiply-add.
    """
    total = zeros64()
    whole = dim - dim % LANES
    for d in range(0, whole, LANES):
        total = multiply_add(widen(load(W, d)), load(H64, d), total)
    if whole < dim:
        total = multiply_add(widen(load_first(W, whole, dim - whole)), load(H64, whole), total)
    return pair_sum(total)


@inline
def dots64_2x2(W, other_W, h, other_h, dim):
    """`dot64` of two rows of W with two of H64, bit for bit: each value is used twice.

    Two tuples, one for each row of W.
    """
    a, b, c, e = zeros64(), zeros64(), zeros64(), zeros64()
    whole = dim - dim % LANES
    for d in range(0, whole, LANES):
        w, x, y = widen(load(W, d)), load(h, d), load(other_h, d)
        a, b = multiply_add(w, x, a), multiply_add(w, y, b)
        w = widen(load(other_W, d))
        c, e = multiply_add(w, x, c), multiply_add(w, y, e)
    if whole < dim:
        n = dim - whole
        w, x, y = widen(load_first(W, whole, n)), load(h, whole), load(other_h, whole)
        a, b = multiply_add(w, x, a), multiply_add(w, y, b)
        w = widen(load_first(other_W, whole, n))
        c, e = multiply_add(w, x, c), multiply_add(w, y, e)
    sums = pair_sums_of_four(a, b, c, e)
    return (sums[0], sums[1]), (sums[2], sums[3])


@inline
def dots64_2x1(W, other_W, h, dim):
    """`dot64` of two rows of W with one of H64, bit for bit."""
    a, b = zeros64(), zeros64()
    whole = dim - dim % LANES
    for d in range(0, whole, LANES):
        x = load(h, d)
        a = multiply_add(widen(load(W, d)), x, a)
        b = multiply_add(widen(load(other_W, d)), x, b)
    if whole < dim:
        n, x = dim - whole, load(h, whole)
        a = multiply_add(widen(load_first(W, whole, n)), x, a)
        b = multiply_add(widen(load_first(other_W, whole, n)), x, b)
    return pair_sum(a), pair_sum(b)


@inline
def dots_1x4(W, i, j, k, m, h, dim):
    """Dots of one row h with the four rows of W that start at offsets i, j, k, m, in their type."""
    zero = splat_like(h, 0.0)
    a, b, c, e = zero, zero, zero, zero
    whole = dim - dim % LANES
    for d in range(0, whole, LANES):
        x = load(h, d)
        a = multiply_add(load(W, i + d), x, a)
        b = multiply_add(load(W, j + d), x, b)
        c = multiply_add(load(W, k + d), x, c)
        e = multiply_add(load(W, m + d), x, e)
    if whole < dim:
        n = dim - whole
        x = load_first(h, whole, n)
        a = multiply_add(load_first(W, i + whole, n), x, a)
        b = multiply_add(load_first(W, j + whole, n), x, b)
        c = multiply_add(load_first(W, k + whole, n), x, c)
        e = multiply_add(load_first(W, m + whole, n), x, e)
    return sums_of_four(a, b, c, e)


@inline
def outer(w, x0, x1, x2, x3, totals):
    """Four sums, each with one more product: lanes w with those of four rows."""
    return (
        multiply_add(w, x0, totals[0]),
        multiply_add(w, x1, totals[1]),
        multiply_add(w, x2, totals[2]),
        multiply_add(w, x3, totals[3]),
    )


@inline
def dots_4x4_at_once(W, i, j, k, m, H, r0, r1, r2, r3, dim):
    """Sixteen sums in registers, so that each value loaded is used four times."""
    a = (zeros32(), zeros32(), zeros32(), zeros32())
    b, c, e = a, a, a
    whole = dim - dim % LANES
    for d in range(0, whole, LANES):
        x0, x1, x2, x3 = load(H, r0 + d), load(H, r1 + d), load(H, r2 + d), load(H, r3 + d)
        a = outer(load(W, i + d), x0, x1, x2, x3, a)
        b = outer(load(W, j + d), x0, x1, x2, x3, b)
        c = outer(load(W, k + d), x0, x1, x2, x3, c)
        e = outer(load(W, m + d), x0, x1, x2, x3, e)
    if whole < dim:
        n = dim - whole
        x0, x1 = load_first(H, r0 + whole, n), load_first(H, r1 + whole, n)
        x2, x3 = load_first(H, r2 + whole, n), load_first(H, r3 + whole, n)
        a = outer(load_first(W, i + whole, n), x0, x1, x2, x3, a)
        b = outer(load_first(W, j + whole, n), x0, x1, x2, x3, b)
        c = outer(load_first(W, k + whole, n), x0, x1, x2, x3, c)
        e = outer(load_first(W, m + whole, n), x0, x1, x2, x3, e)
    return (
        sums_of_four(a[0], a[1], a[2], a[3]),
        sums_of_four(b[0], b[1], b[2], b[3]),
        sums_of_four(c[0], c[1], c[2], c[3]),
        sums_of_four(e[0], e[1], e[2], e[3]),
    )


@inline
def dots_4x4_in_quarters(W, i, j, k, m, H, r0, r1, r2, r3, dim):
    """Four sums at a time: where registers are narrow, sixteen would not stay in them."""
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
    """Dots of two rows of W, each with two of H."""
    a, b, c, e = zeros32(), zeros32(), zeros32(), zeros32()
    whole = dim - dim % LANES
    for d in range(0, whole, LANES):
        x0, x1, w0, w1 = load(H, r0 + d), load(H, r1 + d), load(W, i + d), load(W, j + d)
        a, b = multiply_add(w0, x0, a), multiply_add(w0, x1, b)
        c, e = multiply_add(w1, x0, c), multiply_add(w1, x1, e)
    if whole < dim:
        n = dim - whole
        x0, x1 = load_first(H, r0 + whole, n), load_first(H, r1 + whole, n)
        w0, w1 = load_first(W, i + whole, n), load_first(W, j + whole, n)
        a, b = multiply_add(w0, x0, a), multiply_add(w0, x1, b)
        c, e = multiply_add(w1, x0, c), multiply_add(w1, x1, e)
    return sums_of_four(a, b, c, e)


dots_4x4 = dots_4x4_at_once if AVX512 else dots_4x4_in_quarters
"""float32 dots of the rows of H at offsets r0 .. r3 with the rows of W at i, j, k, m.

Four tuples, one for each row of W, of the four rows of H; the same bits on every CPU.
"""


@inline
def widen_row(h, h64, dim):
    """Copy one row to float64, padded with zeros; return its squared norm (NaN or inf if h is)."""
    total = zeros64()
    whole = dim - dim % LANES
    for d in range(0, whole, LANES):
        x = widen(load(h, d))
        total = multiply_add(x, x, total)
        store(h64, d, x)
    if whole < dim:
        x = widen(load_first(h, whole, dim - whole))
        total = multiply_add(x, x, total)
        store(h64, whole, x)
    return pair_sum(total)


@inline
def row_of(start, row, dim):
    """The pointer to a row of a matrix."""
    return shift(start, row * dim)


@inline
def four_from(i, last, apart=1):
    """Four places from i on, so far apart; from `last` on the one before it instead."""
    return i, min(i + apart, last - 1), min(i + 2 * apart, last - 1), min(i + 3 * apart, last - 1)
