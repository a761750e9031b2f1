"""Narrow intervals where that decides most: coarse ones are refined, heavy rows are computed."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np

from logitsieve.kernels.compile import inline, splice
from logitsieve.kernels.intervals.intervals import (
    COARSE,
    FINE,
    KNOWN,
    ROOM,
    compute,
    places_of,
    refine_listed,
)
from logitsieve.kernels.intervals.sums import (
    UNSURE,
    exponentials_at,
    limits_of,
    on_side,
    sum_all,
)
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    multiply_add,
    pair_sum,
    splat32,
    store,
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.masks import (
    lanes_not_below,
    lowest_bit,
    where_below,
    where_equal,
    without,
)
from logitsieve.kernels.sketch.sketch import ALL, FINE_ALL, sketch_at
from logitsieve.kernels.topk.descriptor import DIM, ROWS

HEAVY = 1 / 1024  # of Z: rows that have more are computed
OPEN_SHARE = 1 / 256  # of Z that coarse intervals may leave open
FAR = np.float32(1e30)  # between the gaps of light rows and of heavy ones
LEAST_SHARE = 1 / 16  # of a budget that is tried
LEAST_POWER = -40  # of two: a row of less weight is not computed for its share of a sum
SCATTERED = 2  # times as long as a row in its order takes one that is not
WITHIN = 0.999  # of a width, for its exponential


@splice
def narrow(descriptor, intervals, scale, budget):
    """Refine and compute rows until sums over the others are off by `budget` or little more.

    False if that takes more than half as long as all of W.
    """
    size = places_of(descriptor)
    for place in range(0, size, LANES):
        estimate, _, _ = exponentials_at(intervals, scale, place)
        known = where_equal(intervals.states, place, KNOWN, estimate)
        store(intervals.gaps, place, without(known, estimate))
    limit = _threshold(intervals.gaps, size, intervals.factors[ALL] * scale.inverse, budget / 3)
    closer = _threshold(
        intervals.gaps, size, intervals.factors[FINE_ALL] * scale.inverse, budget / 3
    )
    return _narrow_listed(descriptor, intervals, limit, max(limit, closer))


@inline
def _threshold(weights, size, error, budget):
    """The largest power of two below which weights times that error are within the budget."""
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


@splice
def narrow_unsure(descriptor, intervals, logit):
    """Refine, or compute, the rows that may be on either side of a logit; False if that is dear."""
    limits = limits_of(logit)
    one, two = splat32(np.float32(1)), splat32(np.float32(2))
    for place in range(0, places_of(descriptor), LANES):
        fine = on_side(intervals, place, FINE, UNSURE, limits, two)
        store(intervals.gaps, place, multiply_add(
            one, on_side(intervals, place, COARSE, UNSURE, limits, one), fine
        ))  # fmt: skip
    return _narrow_listed(descriptor, intervals, np.float32(1), np.float32(2))


@splice
def _narrow_listed(descriptor, intervals, limit, closer):
    """Refine rows whose gap reaches `limit`, compute those that reach `closer`; False if dear."""
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
    listed, first = 0, 0
    while first < size or listed > 0:
        while first < size and listed <= ROOM - 2 * LANES:
            mask = lanes_not_below(load(intervals.gaps, first), limit)
            while mask != 0:
                place = first + lowest_bit(mask)
                mask &= mask - 1
                if intervals.gaps[place] >= closer:
                    compute(descriptor, intervals, int(sketch.order[place]))
                elif intervals.states[place] == COARSE:
                    intervals.listed[listed] = place
                    listed += 1
            first += LANES
        refine_listed(descriptor, intervals, listed)
        listed = 0
    return True


@splice
def _narrow_rows(descriptor, intervals, scale):
    """Refine the rows whose own intervals are wide beside Z, and compute those that are heavy."""
    sums, minus = sum_all(descriptor, intervals, scale), splat32(np.float32(-1))
    share = np.float32(descriptor[ROWS] / (OPEN_SHARE * sums.estimate))
    heavy = np.float32(HEAVY * sums.estimate)
    for place in range(0, places_of(descriptor), LANES):
        estimate, low, high = exponentials_at(intervals, scale, place)
        coarse = where_equal(intervals.states, place, COARSE, high)
        coarse = multiply_add(minus, where_equal(intervals.states, place, COARSE, low), coarse)
        light = multiply_add(splat32(share), where_below(estimate, heavy, coarse), zeros32())
        rest = without(where_below(estimate, heavy, estimate), estimate)
        store(intervals.gaps, place, multiply_add(splat32(FAR), rest, light))
    _narrow_listed(descriptor, intervals, np.float32(1), np.float32(HEAVY * sums.estimate * FAR))


@splice
def narrow_sums(descriptor, intervals, scale, width):
    """(True, sums whose logarithms are within `width` nats), or False if that is dear.

    They are no wider than where heavy rows are known and others have their fine intervals.
    """
    _narrow_rows(descriptor, intervals, scale)
    sums, share = sum_all(descriptor, intervals, scale), 1.0
    while not sums.high <= sums.low * exp(WITHIN * width):
        budget = share * sums.estimate * (exp(WITHIN * width) - 1.0)
        if share < LEAST_SHARE or not narrow(descriptor, intervals, scale, budget):
            return False, sums
        sums, share = sum_all(descriptor, intervals, scale), share / 2
    return True, sums
