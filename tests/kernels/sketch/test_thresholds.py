"""Thresholds that a few of many values reach."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.pointers import pointer
from logitsieve.kernels.sketch.thresholds import SEEDS, take_best, threshold_between


@kernel("(float32[::1], int64, int64)")
def threshold(values, wanted, most):
    return threshold_between(pointer(values), values.size, wanted, most)


@kernel("(float32[::1], float32[::1], int32[::1], int64, int64, int32[::1])")
def seeds(estimates, uppers, ids, count, limit, chosen):
    return take_best(
        pointer(estimates), pointer(uppers), pointer(ids), count, limit, pointer(chosen)
    )


@given(
    groups=st.integers(1, 9),
    exponent=st.integers(-6, 30),
    wanted=st.integers(1, 16),
    seed=st.integers(0, 1000),
)
def test_as_many_values_as_wanted_reach_a_threshold(
    groups: int, exponent: int, wanted: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    values = (random.standard_normal(16 * groups) * 2.0**exponent).astype(np.float32)
    most = 2 * wanted
    reached = (values >= threshold(values, wanted, most)).sum()
    assert wanted <= reached <= max(most, wanted)


@given(count=st.integers(1, 90), limit=st.integers(1, 9), seed=st.integers(0, 1000))
def test_seeds_are_the_best_estimates_and_lose_their_bounds(
    count: int, limit: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    estimates = random.permutation(96).astype(np.float32)
    uppers, ids = np.zeros(96, np.float32), random.permutation(96).astype(np.int32)
    chosen, values = np.full(2 * SEEDS * limit, -1, np.int32), estimates[:count].copy()
    size = seeds(estimates, uppers, ids, count, limit, chosen)
    assert min(limit, count) <= size <= 2 * SEEDS * limit
    order = np.argsort(-values)[:size]
    assert sorted(chosen[:size].tolist()) == sorted(ids[order].tolist())
    assert np.flatnonzero(uppers == -np.inf).tolist() == sorted(order.tolist())
