"""Thresholds of bounds, and the rows that give the first one."""

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.simd.dots import padded
from logitsieve.kernels.simd.lanes import LANES, largest_of, load
from logitsieve.kernels.simd.masks import count_bits, first_lanes, lanes_not_below, lowest_bit
from logitsieve.kernels.simd.pointers import shift
from logitsieve.kernels.topk.queries import FLOOR, SIZE, STATE

SEEDS = 2  # rows computed first for each answer: their k-th best is close to the true one
LOWEST = np.float32(-3.4028234e38)
SPARE = 2.0**-22  # covers rounding a threshold to float32 (proofs/sketch.py)


@inline
def threshold_of(queries, q, margin):
    """Return the finite value that the bound of every row among the best reaches."""
    state, least = shift(queries.states, STATE * q), -np.inf
    if int(state[SIZE]) == queries.limit:
        least = queries.values[q * queries.limit]
    return reached_by(max(least, state[FLOOR]), margin)


@inline
def reached_by(logit, margin):
    threshold = np.float32(logit - margin - SPARE * abs(logit))
    return threshold if threshold > LOWEST else LOWEST  # also if the margin is NaN


@inline_once
def threshold_between(values, size, least, most):
    """Find a value that `least` to `most` of the values reach, by bisection."""
    high = float(largest_of(values, size))
    low, step = high - 1.0, 1.0
    while _count(values, size, np.float32(low)) < least and step < 1e38:
        high, step = low, 2.0 * step
        low = high - step
    for _ in range(24):
        if _count(values, size, np.float32(low)) <= most:
            break
        middle = (low + high) / 2
        if _count(values, size, np.float32(middle)) < least:
            high = middle
        else:
            low = middle
    return np.float32(low)


@inline
def _count(values, size, threshold):
    total = 0
    for i in range(0, size, LANES):
        total += count_bits(lanes_not_below(load(values, i), threshold))
    return total


@inline
def take_best(estimates, uppers, count, limit, chosen):
    """Write the places of `limit` or more of the best estimates, and -inf to their bounds.

    Returns their number, which is less than `limit` only if fewer are finite.
    """
    most, end = 2 * SEEDS * limit, padded(count)
    for i in range(count, end):
        estimates[i] = -np.inf
    least, size = min(SEEDS * limit, _count(estimates, end, LOWEST)), 0
    threshold = max(LOWEST, threshold_between(estimates, end, least, most))
    for first in range(0, end, LANES):
        mask = first_lanes(lanes_not_below(load(estimates, first), threshold), count - first)
        while mask and size < most:
            place = first + lowest_bit(mask)
            mask &= mask - 1
            chosen[size] = place
            uppers[place] = -np.inf
            size += 1
    return size
