"""Sums of products of bytes: exact, by AVX-512 VNNI and in plain vector operations."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.byte_lanes import (
    join_planes,
    multiply_bytes,
    multiply_bytes_generic,
    multiply_row,
    multiply_row_generic,
    scale_sums,
    total_of_sums,
    zero_sums,
)
from logitsieve.kernels.simd.lanes import load, store
from logitsieve.kernels.simd.pointers import pointer

WIDEST = 512  # bytes of a row, of which 128 times a sum still fits into 31 bits


@kernel("(uint8[::1], int8[::1], int8[::1], int64[::1])")
def both_totals(row, high, low, out):
    a, b, c, e = zero_sums(), zero_sums(), zero_sums(), zero_sums()
    for piece in range(row.size // 64):
        a = multiply_row(a, pointer(row), pointer(high), piece)
        b = multiply_row(b, pointer(row), pointer(low), piece)
        c = multiply_row_generic(c, pointer(row), pointer(high), piece)
        e = multiply_row_generic(e, pointer(row), pointer(low), piece)
    out[0], out[1] = total_of_sums(join_planes(a, b)), total_of_sums(join_planes(c, e))


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.integers(1, WIDEST // 64),
    code=st.sampled_from([0, 1, 128, 255, None]),
    high=st.sampled_from([-127, 0, 127, None]),
    low=st.sampled_from([-64, 0, 64, None]),
    seed=st.integers(0, 1000),
)
def test_totals_of_two_planes_are_exact(
    pieces: int, code: int | None, high: int | None, low: int | None, seed: int
) -> None:
    """Up to the widest row of the largest codes, whose total is still less than 2^31."""
    random = np.random.default_rng(seed)
    row = random.integers(0, 256, 64 * pieces).astype(np.uint8)
    highs = random.integers(-126, 127, row.size).astype(np.int8)
    lows = random.integers(-64, 65, row.size).astype(np.int8)
    for values, value in ((row, code), (highs, high), (lows, low)):
        if value is not None:
            values[:] = value
    totals = np.empty(2, np.int64)
    both_totals(row, highs, lows, totals)
    wanted = row.astype(np.int64) @ (128 * highs.astype(np.int64) + lows)
    assert totals.tolist() == [wanted, wanted]


@kernel("(uint8[::1], int8[::1], float32[::1], float32[::1])")
def both_sums(rows, query, fast, generic):
    by_word, by_lane = zero_sums(), zero_sums()
    for quad in range(query.size // 4):
        by_word = multiply_bytes(by_word, pointer(rows), pointer(query), quad)
        by_lane = multiply_bytes_generic(by_lane, pointer(rows), pointer(query), quad)
    store(pointer(fast), 0, scale_sums(by_word, 7, load(pointer(fast), 0)))
    store(pointer(generic), 0, scale_sums(by_lane, 7, load(pointer(generic), 0)))


@settings(max_examples=50, deadline=None)
@given(
    quads=st.integers(1, 20),
    rows=st.sampled_from([0, 1, 127, 128, 255, None]),
    query=st.sampled_from([-128, -127, -1, 0, 127, None]),
    seed=st.integers(0, 1000),
)
def test_sums_of_byte_products_are_exact(
    quads: int, rows: int | None, query: int | None, seed: int
) -> None:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, (quads, 16, 4)).astype(np.uint8)
    values = random.integers(-128, 128, quads * 4).astype(np.int8)
    if rows is not None:
        codes[:] = rows
    if query is not None:
        values[:] = query
    fast, generic = np.ones(16, np.float32), np.ones(16, np.float32)
    both_sums(codes.ravel(), values, fast, generic)
    products = codes.astype(np.int64) * values.reshape(quads, 1, 4)
    np.testing.assert_array_equal(fast, products.sum(axis=(0, 2)) - 7)
    np.testing.assert_array_equal(generic, fast)
