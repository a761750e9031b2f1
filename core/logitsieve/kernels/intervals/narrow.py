"""Narrow intervals as needed: refine coarse ones, compute heavy rows."""

from math import exp, sqrt

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.intervals.intervals import (
    BATCH,
    COARSE,
    FINE,
    KNOWN,
    compute,
    places_of,
    refine_batch,
)
from logitsieve.kernels.intervals.sums import UNSURE, exponentials_at, limits_of, on_side, sum_all
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    multiply_add,
    pair_sum,
    splat32,
    store,
    widen,
    zeros64,
)
from logitsieve.kernels.simd.masks import lanes_not_below, lowest_bit, where_below, where_equal
from logitsieve.kernels.sketch.encode_query import ALL, FINE_ALL
from logitsieve.kernels.sketch.sketch import sketch_at
from logitsieve.kernels.topk.descriptor import DIM, ROWS

HEAVY = 1 / 1024  # of Z: heavier rows are computed
OPEN_SHARE = 1 / 256  # of Z: the uncertainty that coarse intervals may leave
FAR = np.float32(1e30)  # the factor of the gaps of heavy rows
LEAST_SHARE = 1 / 16  # the smallest share of a budget to try
LEAST_POWER = -40  # of two: lighter rows are not computed for their share of a sum
SCATTERED = 2  # cost of a row out of order, relative to a sequential read
WITHIN = 0.999  # of a width, for rounding its exponential


@inline_once
def narrow(descriptor, intervals, scale, budget):
    """Refine and compute rows until sums over the others are uncertain by about `budget`.

    False if that takes more than half as long as all of W.
    """
    size = places_of(descriptor)
    for place in range(0, size, LANES):
        estimate, _, _ = exponentials_at(intervals, scale, place)
        known = where_equal(intervals.states, place, KNOWN, estimate)
        store(intervals.gaps, place, estimate - known)
    factors, inverse = intervals.coded.factors, scale.inverse
    limit = _threshold(intervals.gaps, size, factors[ALL] * inverse, budget / 3)
    closer = _threshold(intervals.gaps, size, factors[FINE_ALL] * inverse, budget / 3)
    return _narrow_gaps(descriptor, intervals, limit, max(limit, closer))


@inline
def _threshold(weights, size, error, budget):
    low, high = LEAST_POWER, 1  # exponents: enough, and too much
    while high - low > 1:
        middle = (low + high) // 2
        threshold, total = np.float32(2.0**middle), zeros64()
        for place in range(0, size, LANES):
            lanes = load(weights, place)
            wide = widen(where_below(lanes, threshold, lanes))
            total = multiply_add(wide, wide, total)
        off = sqrt(pair_sum(total)) * error + 2.0 * float(threshold) * error * error
        if off <= budget:
            low = middle
        else:
            high = middle
    return np.float32(2.0**low)


@inline_once
def narrow_unsure(descriptor, intervals, logit):
    limits = limits_of(logit)
    for place in range(0, places_of(descriptor), LANES):
        coarse = on_side(intervals, place, COARSE, UNSURE, limits, splat32(1))
        fine = on_side(intervals, place, FINE, UNSURE, limits, splat32(2))
        store(intervals.gaps, place, coarse + fine)
    return _narrow_gaps(descriptor, intervals, np.float32(1), np.float32(2))


@inline_once
def _narrow_gaps(descriptor, intervals, limit, closer):
    size, sketch = places_of(descriptor), sketch_at(descriptor)
    to_refine = to_compute = 0
    for place in range(0, size, LANES):
        mask = lanes_not_below(load(intervals.gaps, place), limit)
        while mask != 0:
            lane = place + lowest_bit(mask)
            mask &= mask - 1
            to_compute += intervals.gaps[lane] >= closer
            to_refine += intervals.states[lane] == COARSE
    bytes_ = 4 * descriptor[DIM]
    taken = SCATTERED * (to_compute * bytes_ + to_refine * sketch.fine_width)
    if taken > sketch.rows * bytes_ // 2:
        return False
    batched, first = 0, 0
    while first < size or batched > 0:
        while first < size and batched <= BATCH - 2 * LANES:
            mask = lanes_not_below(load(intervals.gaps, first), limit)
            while mask != 0:
                place = first + lowest_bit(mask)
                mask &= mask - 1
                if intervals.gaps[place] >= closer:
                    compute(descriptor, intervals, int(sketch.order[place]))
                elif intervals.states[place] == COARSE:
                    intervals.batch[batched] = place
                    batched += 1
            first += LANES
        refine_batch(descriptor, intervals, batched)
        batched = 0
    return True


@inline_once
def _narrow_rows(descriptor, intervals, scale):
    sums = sum_all(descriptor, intervals, scale)
    share = np.float32(descriptor[ROWS] / (OPEN_SHARE * sums.estimate))
    heavy = np.float32(HEAVY * sums.estimate)
    for place in range(0, places_of(descriptor), LANES):
        estimate, low, high = exponentials_at(intervals, scale, place)
        coarse = where_equal(intervals.states, place, COARSE, high)
        coarse -= where_equal(intervals.states, place, COARSE, low)
        light = where_below(estimate, heavy, coarse) * share
        rest = estimate - where_below(estimate, heavy, estimate)
        store(intervals.gaps, place, multiply_add(rest, FAR, light))
    _narrow_gaps(descriptor, intervals, np.float32(1), np.float32(HEAVY * sums.estimate * FAR))


@inline_once
def narrow_sums(descriptor, intervals, scale, width):
    """Return (True, sums with logarithms within `width` nats), or False if too expensive."""
    _narrow_rows(descriptor, intervals, scale)
    sums, share = sum_all(descriptor, intervals, scale), 1.0
    while not sums.high <= sums.low * exp(WITHIN * width):
        budget = share * sums.estimate * (exp(WITHIN * width) - 1.0)
        if share < LEAST_SHARE or not narrow(descriptor, intervals, scale, budget):
            return False, sums
        sums, share = sum_all(descriptor, intervals, scale), share / 2
    return True, sums
