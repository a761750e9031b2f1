"""Vector operations against numpy, lane by lane, and sums in their one order."""

import numpy as np
import pytest
from numba.core import config

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.exponential import times_power_of_two
from logitsieve.kernels.simd.lanes import (
    LANES,
    cpu_has,
    larger,
    largest_of,
    load,
    load_first,
    magnitude,
    pair_sum,
    prefetch,
    rounded,
    store,
    sums_of_four,
    widen,
)
from logitsieve.kernels.simd.pointers import pointer


@kernel("(float32[::1], float32[::1], float32[:,::1])")
def each_lane(left, right, out):
    a, b, start = load(pointer(left), 0), load(pointer(right), 0), pointer(out)
    store(start, 0, larger(a, b))
    store(start, LANES, magnitude(a))
    store(start, 2 * LANES, rounded(a))
    store(start, 3 * LANES, times_power_of_two(a, rounded(b)))


@kernel("(float32[:,::1], float64[::1])")
def sums(rows, out):
    start = pointer(rows)
    a, b = load(start, 0), load(start, LANES)
    c, e = load(start, 2 * LANES), load(start, 3 * LANES)
    wide = sums_of_four(widen(a), widen(b), widen(c), widen(e))
    narrow = sums_of_four(a, b, c, e)
    out[0], out[1], out[2] = pair_sum(widen(a)), pair_sum(widen(b)), pair_sum(widen(c))
    out[3] = pair_sum(widen(e))
    for i in range(4):
        out[4 + i], out[8 + i] = wide[i], narrow[i]


@kernel("(float32[::1], int64, float32[::1])")
def first(values, count, out):
    store(pointer(out), 0, load_first(pointer(values), 0, count))


@kernel("(float32[::1],)")
def largest(values):
    return largest_of(pointer(values), values.size)


@kernel("(float32[::1], int64)")
def fetched(values, offset):
    prefetch(pointer(values), offset)
    return values[0]


@pytest.mark.parametrize("offset", [0, -(1 << 20), 1 << 44, 1 << 60])
def test_any_address_may_be_prefetched(offset: int) -> None:
    assert fetched(np.full(1, 7, np.float32), offset) == 7


def test_operations_are_numpys() -> None:
    random = np.random.default_rng(0)
    left, right = (random.standard_normal((2, LANES)) * 8).astype(np.float32)
    left[:2] = 0.5, 2.5  # halves go to the even number
    out = np.empty((4, LANES), np.float32)
    each_lane(left, right, out)
    np.testing.assert_array_equal(out[0], np.maximum(left, right))
    np.testing.assert_array_equal(out[1], np.abs(left))
    np.testing.assert_array_equal(out[2], np.rint(left))
    np.testing.assert_array_equal(out[3], np.ldexp(left, np.rint(right).astype(int)))


def test_lanes_are_summed_in_adjacent_pairs_and_four_at_once_nearly_so() -> None:
    rows = np.random.default_rng(1).standard_normal((4, LANES)).astype(np.float32)
    out, wanted = np.empty(12), rows.astype(np.float64)
    sums(rows, out)
    while wanted.shape[1] > 1:
        wanted = wanted[:, 0::2] + wanted[:, 1::2]
    np.testing.assert_array_equal(out[:4], wanted[:, 0])
    np.testing.assert_allclose(out[4:8], wanted[:, 0], rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(out[8:], wanted[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 7, 15, 16])
def test_lanes_beyond_a_count_are_zeros(count: int) -> None:
    values, out = np.arange(1, LANES + 1, dtype=np.float32), np.empty(LANES, np.float32)
    first(values, count, out)
    np.testing.assert_array_equal(out, np.where(np.arange(LANES) < count, values, 0))


def test_the_largest_of_whole_lanes() -> None:
    values = np.random.default_rng(2).standard_normal(5 * LANES).astype(np.float32)
    assert largest(values) == values.max()
    assert largest(values[:0]) == -np.inf


@pytest.mark.parametrize(("features", "wanted"), [("+avx2,+fma", True), ("+avx,-avx2", False)])
def test_features_are_those_that_numba_is_set_to(
    features: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CPU_FEATURES", features)
    assert cpu_has("avx2") is wanted
    assert not cpu_has("av")  # the beginning of a name
