"""What has an instruction of its own on some CPUs is the same in plain vector operations."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.byte_lanes import (
    join_planes,
    multiply_row,
    multiply_row_generic,
    total_of_sums,
    zero_sums,
)
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.masks import append_lanes, append_lanes_generic
from logitsieve.kernels.simd.pointers import pointer

WIDEST = 512  # bytes of a row, of which 128 times a sum still fits into 31 bits
UNTOUCHED = -1


@kernel("(uint8[::1], int8[::1], int8[::1], int64[::1])")
def both_totals(row, high, low, out):
    a, b, c, e = zero_sums(), zero_sums(), zero_sums(), zero_sums()
    for piece in range(row.size // 64):
        a = multiply_row(a, pointer(row), pointer(high), piece)
        b = multiply_row(b, pointer(row), pointer(low), piece)
        c = multiply_row_generic(c, pointer(row), pointer(high), piece)
        e = multiply_row_generic(e, pointer(row), pointer(low), piece)
    out[0], out[1] = total_of_sums(join_planes(a, b)), total_of_sums(join_planes(c, e))


@kernel("(int64[::1], int32[::1], int32[::1], int64[::1])")
def both_lists(masks, fast, generic, ends):
    here, there = 0, 0
    for i in range(masks.size):
        here = append_lanes(pointer(fast), here, masks[i], i * 1000)
        there = append_lanes_generic(pointer(generic), there, masks[i], i * 1000)
    ends[0], ends[1] = here, there


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


@settings(max_examples=100, deadline=None)
@given(masks=st.lists(st.integers(0, (1 << LANES) - 1), min_size=1, max_size=9))
def test_lanes_are_appended_in_order_and_no_more_than_sixteen_are_touched(masks: list[int]) -> None:
    fast = np.full(LANES * len(masks) + 8, UNTOUCHED, np.int32)
    generic, ends = fast.copy(), np.empty(2, np.int64)
    both_lists(np.array(masks, np.int64), fast, generic, ends)
    wanted = [1000 * i + lane for i, mask in enumerate(masks) for lane in lanes_of(mask)]
    assert ends.tolist() == [len(wanted)] * 2
    for got in (fast, generic):
        assert got[: len(wanted)].tolist() == wanted
        before_last = len(wanted) - len(lanes_of(masks[-1]))
        assert (got[max(before_last + LANES, len(wanted)) :] == UNTOUCHED).all()


def lanes_of(mask: int) -> list[int]:
    """The lanes whose bits are set."""
    return [lane for lane in range(LANES) if mask >> lane & 1]
