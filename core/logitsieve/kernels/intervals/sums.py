"""Sums of exponentials of logits within intervals: what bounds Z, and what is above or below one.

They are relative to the largest logit, in float32 for rows that are not known; so an exponent of
theirs is moved by `lift`, which is more than float32 takes from it.
"""

from __future__ import annotations

from collections import namedtuple
from math import exp, log, sqrt

import numpy as np

from logitsieve.kernels.compile import inline, splice
from logitsieve.kernels.intervals.intervals import COARSE, COUNT, FINE, MOST, REFINED, places_of
from logitsieve.kernels.simd.exponential import exp_lanes
from logitsieve.kernels.simd.lanes import (
    LANES,
    larger,
    largest_lane,
    load,
    multiply_add,
    pair_sum,
    smaller,
    splat32,
    splat64,
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.masks import lanes_not_below, where_below, where_equal, without
from logitsieve.kernels.sketch.sketch import ALL, FINE_ALL, MARGIN, UNIT64
from logitsieve.kernels.sketch.thresholds import SPARE
from logitsieve.kernels.topk.merge import HIGH, LOW, TOP, VALUE

LIFTED = 1.0  # nats that float32 may cost: beyond it, at logits / T of millions, nothing is said
LEAST = 2e-38  # more than `exp_lanes` makes of -inf

# What proofs/intervals.py proves to be enough.
LIFT, REACH = 2.0**-21, 100.0  # of |top| and of so many nats, for an exponent in float32
SUM_SPARE = 1e-5  # of sums of float32 exponentials
KNOWN_SPARE = 2.0**-40  # of exponentials of known logits; each addition takes UNIT64 more
LOG_SPARE = 2.0**-50  # of |top| and of the logarithm of a sum, for that and its addition

ALL_ROWS, BEFORE, REST, UNSURE = range(4)  # sides of a logit

# Exponents are x inverse - top.
Scale = namedtuple("Scale", "inverse top lift")
# Sums of e^{x inverse - top}: by estimates, and the two numbers that the true one is between.
Sums = namedtuple("Sums", "estimate low high")


@inline
def scale_of(intervals, inverse):
    """The scale of exponents; its `lift` is more than LIFTED where float32 says nothing."""
    top = intervals.state[MOST] * inverse
    return Scale(inverse, top, LIFT * (abs(top) + REACH))


@inline
def sum_all(descriptor, intervals, scale):
    """Sums over all rows."""
    limits = np.float32(np.inf), np.float32(np.inf)
    return _sum_side(descriptor, intervals, scale, ALL_ROWS, limits, known_sum(intervals, scale))


@inline
def scaled_logit(intervals, scale, row):
    """The scaled logit of a known row, as head `exact` has it."""
    return (intervals.logits[row] - intervals.state[MOST]) * scale.inverse


@inline
def known_sum(intervals, scale):
    total = 0.0
    for i in range(int(intervals.state[COUNT])):
        total += exp(scaled_logit(intervals, scale, intervals.known[i]))
    return total


@inline
def sum_known(descriptor, intervals, scale):
    """Sums over known rows, all others being 0 or more; the estimate is over these, too."""
    estimates, one = zeros64(), splat64(1.0)
    for place in range(0, places_of(descriptor), LANES):
        estimate, _, _ = exponentials_at(intervals, scale, place)
        estimates = multiply_add(widen(estimate), one, estimates)
    return with_known(
        intervals, known_sum(intervals, scale), Sums(pair_sum(estimates), 0.0, np.inf)
    )


@inline
def _sum_side(descriptor, intervals, scale, side, limits, known):
    """Sums over the rows on one side of a logit, with those that are known."""
    coarse = _sum_state(descriptor, intervals, scale, COARSE, side, limits)
    fine = _sum_state(descriptor, intervals, scale, FINE, side, limits)
    return _added(with_known(intervals, known, coarse), fine)


@inline
def _added(one, other):
    return Sums(one.estimate + other.estimate, one.low + other.low, one.high + other.high)


@inline
def with_known(intervals, known, sums):
    """The sums, and one over known rows, with the share that it is off by at most."""
    spare = KNOWN_SPARE + intervals.state[COUNT] * UNIT64
    return _added(Sums(known, known * (1 - spare), known * (1 + spare)), sums)


@inline
def sums_of(estimate, low, high, size):
    """Float32 exponentials added up at so many places, and what their sums are off by."""
    low = max(0.0, low - size * LEAST) * (1 - SUM_SPARE)
    return Sums(estimate, low, high * (1 + SUM_SPARE))


@inline
def _sum_state(descriptor, intervals, scale, state, side, limits):
    """Sums over the rows of a state on one side, by the bounds of each, and of all together.

    What the estimates of all rows are off by is a vector no longer than a number N. So the sum of
    some weights times it is no more than N times the length of these weights (Cauchy, Schwarz), and
    that is what the sum of exponentials is off by, but for second orders. `apart` is raised, for
    what is left of the estimates when it is taken off may be next to nothing.
    """
    estimates, squares, lows, highs, most = zeros64(), zeros64(), zeros64(), zeros64(), zeros32()
    size, one = places_of(descriptor), splat64(1.0)
    if state == FINE and intervals.state[REFINED] == 0.0:
        return Sums(0.0, 0.0, 0.0)
    few, ones = state == FINE or side != ALL_ROWS, splat32(np.float32(1))
    for place in range(0, size, LANES):
        if few:
            found = on_side(intervals, place, state, side, limits, ones)
            if lanes_not_below(found, np.float32(1)) == 0:
                continue
        estimate, low, high = exponentials_at(intervals, scale, place)
        estimate = on_side(intervals, place, state, side, limits, estimate)
        low = on_side(intervals, place, state, side, limits, low)
        high = on_side(intervals, place, state, side, limits, high)
        wide = widen(estimate)
        estimates = multiply_add(wide, one, estimates)
        squares = multiply_add(wide, wide, squares)
        lows = multiply_add(widen(low), one, lows)
        highs = multiply_add(widen(high), one, highs)
        most = larger(most, high)
    estimate, low, high = sums_of(pair_sum(estimates), pair_sum(lows), pair_sum(highs), size)
    error = intervals.factors[ALL if state == COARSE else FINE_ALL] * scale.inverse
    apart = sqrt(pair_sum(squares)) * error
    spread = exp(scale.inverse * intervals.factors[MARGIN] + scale.lift) * (1 + SUM_SPARE)
    if apart < np.inf:
        # No row's estimate and error give more than its upper bound, but for the margin.
        second = float(largest_lane(most)) * spread / 2 * error * error
        low = max(low, (estimate - size * LEAST - apart * (1 + SUM_SPARE)) / spread)
        high = min(high, (estimate + apart + second) * spread)
    return Sums(estimate, low, high)


@inline
def on_side(intervals, place, state, side, limits, lanes):
    """The lanes of rows of a state on one side, and zeros elsewhere."""
    lanes = where_equal(intervals.states, place, state, lanes)
    if side == ALL_ROWS:
        return lanes
    under, over = limits
    upper, minus = load(intervals.uppers, place), splat32(np.float32(-1))
    if side == REST:
        return where_below(upper, under, lanes)
    lower = _lower(load(intervals.estimates, place), upper)
    before = where_below(multiply_add(minus, lower, zeros32()), over, lanes)
    if side == BEFORE:
        return before
    return without(where_below(upper, under, lanes), without(before, lanes))


@inline
def exponentials_at(intervals, scale, place):
    """Sixteen exponentials of estimates, of lower bounds and of upper ones."""
    inverse, down = splat32(np.float32(scale.inverse)), splat32(np.float32(-scale.top))
    lowered = splat32(np.float32(-scale.top - scale.lift))
    lifted = splat32(np.float32(scale.lift - scale.top))
    upper, estimate = load(intervals.uppers, place), load(intervals.estimates, place)
    # Fine bounds may be above the largest logit, where the coarse ones were not. Lower bounds never
    # are; those of -inf are not a number, which `exp_lanes` takes for the least.
    most = splat32(np.float32(scale.lift))
    return (
        exp_lanes(smaller(multiply_add(estimate, inverse, down), most)),
        exp_lanes(multiply_add(_lower(estimate, upper), inverse, lowered)),
        exp_lanes(smaller(multiply_add(upper, inverse, lifted), most)),
    )


@inline
def _lower(estimate, upper):
    """Lower bounds: as far below the estimates as the upper ones are above."""
    twice = multiply_add(splat32(np.float32(2)), estimate, zeros32())
    return multiply_add(splat32(np.float32(-1)), upper, twice)


@inline
def limits_of(logit):
    """A number below the first is below the logit; one above minus the second is above it."""
    return np.float32(logit - SPARE * abs(logit)), np.float32(-(logit + SPARE * abs(logit)))


@inline
def known_beside(intervals, scale, row, logit):
    """Sums over known rows: of those before a row of that logit, and from it on."""
    first = last = 0.0
    for i in range(int(intervals.state[COUNT])):
        other = int(intervals.known[i])
        found = intervals.logits[other]
        weight = exp(scaled_logit(intervals, scale, other))
        if found > logit or (found == logit and other < row):
            first += weight
        else:
            last += weight
    return first, last


@splice
def sum_beside(descriptor, intervals, scale, row, logit):
    """Sums of what is before a row of that logit, from it on, and on neither side for sure.

    Before it are larger logits, and equal ones of lower rows.
    """
    limits, (first, last) = limits_of(logit), known_beside(intervals, scale, row, logit)
    return (
        _sum_side(descriptor, intervals, scale, BEFORE, limits, first),
        _sum_side(descriptor, intervals, scale, REST, limits, last),
        _sum_side(descriptor, intervals, scale, UNSURE, limits, 0.0),
    )


@inline
def write_interval(scale, sums, log_z):
    """log_z [4]: a TOP of 0, an estimate of log Z, and two numbers that log Z lies between."""
    off = LOG_SPARE * (abs(scale.top) + abs(log(sums.high)) + abs(log(sums.low)))
    low, high = scale.top + log(sums.low) - off, scale.top + log(sums.high) + off
    log_z[TOP], log_z[LOW], log_z[HIGH] = 0.0, low, high
    log_z[VALUE] = min(max(scale.top + log(sums.estimate), low), high)
