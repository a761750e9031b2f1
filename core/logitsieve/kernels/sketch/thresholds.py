"""Thresholds that few of many values, or only the bounds that matter, reach; seeds above them."""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import inline, splice
from logitsieve.kernels.simd.dots import padded
from logitsieve.kernels.simd.lanes import LANES, largest_of, load
from logitsieve.kernels.simd.masks import count_bits, first_lanes, lanes_not_below, lowest_bit
from logitsieve.kernels.topk.queries import SIZE

SEEDS = 2  # rows computed first, for each answer wanted: their k-th best is nearly the k-th best
LOWEST = np.float32(-3.4028234e38)
SPARE = 2.0**-22  # of a threshold, for rounding it to float32: proofs/certified.py


@inline
def threshold_of(queries, q, state, margin):
    """The value that the bound of a row must reach for it to be among the best still.

    More than -inf, which stands for rows that were computed, and for those beyond V.
    """
    if int(state[SIZE]) < queries.limit:
        return LOWEST
    return reached_by(queries.values[q * queries.limit], margin)


@inline
def reached_by(logit, margin):
    """The value that the bound of every row reaches that has such a logit, or a larger one."""
    threshold = np.float32(logit - margin - SPARE * abs(logit))
    return threshold if threshold > LOWEST else LOWEST  # also where the margin is not a number


@splice
def threshold_between(values, size, wanted, most):
    """A value that between `wanted` and `most` of the values reach, found by bisection."""
    high = float(largest_of(values, size))
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
def _count(values, size, threshold):
    total = 0
    for i in range(0, size, LANES):
        total += count_bits(lanes_not_below(load(values, i), threshold))
    return total


@inline
def take_best(estimates, uppers, ids, count, limit, chosen):
    """List the ids of a few rows with the best of `count` estimates, at least `limit` if so many.

    Their bounds become -inf, for they need none any more. Returns their number; estimates up to
    whole lanes are overwritten.
    """
    most, whole = 2 * SEEDS * limit, padded(count)
    for i in range(count, whole):
        estimates[i] = -np.inf
    threshold, size = threshold_between(estimates, whole, min(SEEDS * limit, count), most), 0
    for first in range(0, whole, LANES):
        mask = first_lanes(lanes_not_below(load(estimates, first), threshold), count - first)
        while mask and size < most:
            place = first + lowest_bit(mask)
            mask &= mask - 1
            chosen[size] = ids[place]
            uppers[place] = -np.inf
            size += 1
    return size
