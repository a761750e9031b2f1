import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.lanes import LANES, load, store
from logitsieve.kernels.simd.masks import (
    append_lanes,
    append_lanes_generic,
    count_bits,
    first_lanes,
    lanes_below,
    lanes_not_below,
    lowest_bit,
)
from logitsieve.kernels.simd.pointers import pointer

UNTOUCHED = -1


@kernel("(int64[::1], int32[::1], int32[::1], int64[::1])")
def both_lists(masks, fast, generic, ends):
    fast_end, generic_end = 0, 0
    for i in range(masks.size):
        fast_end = append_lanes(pointer(fast), fast_end, masks[i], i * 1000)
        generic_end = append_lanes_generic(pointer(generic), generic_end, masks[i], i * 1000)
    ends[0], ends[1] = fast_end, generic_end


@kernel("(float32[::1], float32, int64, int64[::1])")
def reaching(values, limit, count, out):
    mask = lanes_not_below(load(pointer(values), 0), np.float32(limit))
    out[0], out[1] = mask, count_bits(mask)
    out[2] = lowest_bit(mask) if mask != 0 else -1
    out[3] = first_lanes(mask, count)
    store(pointer(values), 0, lanes_below(load(pointer(values), 0), np.float32(limit)))


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


@given(
    values=st.lists(st.sampled_from([-np.inf, -1, 0, 1, np.inf, np.nan]), min_size=16, max_size=16),
    limit=st.sampled_from([-1.0, 0.0, 1.0]),
    count=st.integers(1, LANES),
)
def test_bits_name_lanes_not_below_a_limit(values: list[float], limit: float, count: int) -> None:
    lanes, out = np.array(values, np.float32), np.empty(4, np.int64)
    below = lanes < limit
    reaching(lanes, np.float32(limit), count, out)
    wanted = np.flatnonzero(~below).tolist()
    assert lanes_of(int(out[0])) == wanted
    assert out[1] == len(wanted)
    assert out[2] == (wanted[0] if wanted else -1)
    assert lanes_of(int(out[3])) == [lane for lane in wanted if lane < count]
    np.testing.assert_array_equal(lanes, np.where(below, np.float32(values), -np.inf))
