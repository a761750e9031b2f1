"""Cuts: values that few of many reach, and what a bound must reach to matter."""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import inline
from logitsieve.kernels.lanes import (
    LANES,
    count_bits,
    lanes_not_below,
    larger,
    largest_lane,
    load,
    splat32,
)
from logitsieve.kernels.queries import SIZE

SEEDS = 2  # rows computed first, for each answer wanted: their k-th best is nearly the k-th best
LOWEST = np.float32(-3.4028234e38)


@inline
def cut_of(queries, q, state, margin):
    """What the bound of a row must reach that may still be among the best.

    More than -inf, which stands for rows that were computed, and for those beyond V.
    """
    if int(state[SIZE]) < queries.limit:
        return LOWEST
    worst = queries.values[q * queries.limit]
    cut = np.float32(worst - margin - 2.0**-22 * abs(worst))
    return cut if cut > LOWEST else LOWEST  # also where the margin is not a number


@inline
def cut_between(values, size, wanted, most):
    """A value that between `wanted` and `most` of the values reach, found by bisection."""
    best = splat32(np.float32(-np.inf))
    for i in range(0, size, LANES):
        best = larger(best, load(values, i))
    high = float(largest_lane(best))
    low, step = high - 1.0, 1.0
    while _count(values, size, np.float32(low)) < wanted and step < 1e38:
        high, step = low, 2.0 * step
        low = high - step
    for _ in range(24):
        if _count(values, size, np.float32(low)) <= most:
            break
        middle = (low + high) / 2
        if _count(values, size, np.float32(middle)) < wanted:
            high = middle
        else:
            low = middle
    return np.float32(low)


@inline
def _count(values, size, cut):
    total = 0
    for i in range(0, size, LANES):
        total += count_bits(lanes_not_below(load(values, i), cut))
    return total
