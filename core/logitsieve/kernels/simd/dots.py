"""Dot products of rows: float32 dots choose rows, `dot64` defines every answer.

Rows that are read together should be far apart, as a CPU prefetches four streams. W and H are
float32 rows, H64 float64 rows, padded with zeros to a multiple of 16.
"""

import numpy as np

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.lanes import (
    AVX512,
    LANES,
    add_outer,
    lane_sums,
    load,
    load_each,
    load_first,
    load_first_each,
    multiply_add,
    outer_zeros,
    pair_sum,
    pair_sums_of_four,
    store,
    store_each,
    widen,
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
    """Return the dot of a row of W with one of H64, in the order that defines an exact logit.

    Element d is added to float64 sum d mod 16; then adjacent sums are added in pairs. Products are
    exact, so fused multiply-add changes no bit.
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
def dots(W, rows, H, hidden, dim):
    """Return float32 dots of rows of W at offsets `rows` with rows of H at `hidden`, two tuples.

    Dots with the first row of H come first. Bits do not depend on the sizes of tuples.
    """
    totals, end = outer_zeros(H, rows, hidden), dim - dim % LANES
    for d in range(0, end, LANES):
        totals = add_outer(load_each(W, rows, d), load_each(H, hidden, d), totals)
    if end < dim:
        w = load_first_each(W, rows, end, dim - end)
        totals = add_outer(w, load_first_each(H, hidden, end, dim - end), totals)
    return lane_sums(totals)


@inline
def dots_1x4(W, i, j, k, m, h, dim):
    return dots(W, (i, j, k, m), h, (0,), dim)


@inline
def dots_at_once(W, i, j, k, m, H, h0, h1, h2, h3, count, dim, sums):
    rows = i, j, k, m
    if count == 1:
        store_each(sums, dots(W, rows, H, (h0,), dim))
    elif count == 2:
        store_each(sums, dots(W, rows, H, (h0, h1), dim))
    elif count == 3:
        store_each(sums, dots(W, rows, H, (h0, h1, h2), dim))
    else:
        store_each(sums, dots(W, rows, H, (h0, h1, h2, h3), dim))


@inline
def dots_in_parts(W, i, j, k, m, H, h0, h1, h2, h3, count, dim, sums):
    """Like `dots_at_once` with half the registers."""
    if count % 2:
        last = (h0, h0, h2)[count - 1]
        store_each(shift(sums, 4 * (count - 1)), dots(W, (i, j, k, m), H, (last,), dim))
    for q in range(0, count - 1, 2):
        pair = (h0, h2)[q // 2], (h1, h3)[q // 2]
        upper, lower = dots(W, (i, j), H, pair, dim), dots(W, (k, m), H, pair, dim)
        store_each(shift(sums, 4 * q), (upper[0], upper[1], lower[0], lower[1]))
        store_each(shift(sums, 4 * q + 4), (upper[2], upper[3], lower[2], lower[3]))


# Fills sums[4 q : 4 q + 4] with the dots of four rows of W with row q of H.
few_dots = dots_at_once if AVX512 else dots_in_parts


@inline
def widen_row(h, h64, dim):
    """Copy a row to float64, padded with zeros; return its squared norm."""
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
    """Return four places from i on, `delta` apart and at most last - 1."""
    return i, min(i + delta, last - 1), min(i + 2 * delta, last - 1), min(i + 3 * delta, last - 1)


@inline
def four_of(place, end):
    """Return four places from `place` on, at most end - 1, and how many of them differ."""
    last = end - 1
    return (
        place,
        min(place + 1, last),
        min(place + 2, last),
        min(place + 3, last),
        min(4, end - place),
    )
