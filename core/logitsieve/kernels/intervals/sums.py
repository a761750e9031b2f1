"""Sums of exponentials of logits within intervals: bounds of Z, and of the mass around a logit.

Exponents are relative to the largest logit, in float32 unless it is known; `lift` bounds rounding.
"""

from collections import namedtuple
from math import exp, log, sqrt

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
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
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.masks import lanes_not_below, where_below, where_equal
from logitsieve.kernels.sketch.encode_query import ALL, FINE_ALL, MARGIN
from logitsieve.kernels.sketch.sketch import UNIT64
from logitsieve.kernels.sketch.thresholds import SPARE
from logitsieve.kernels.topk.merge import HIGH, LOW, TOP, VALUE

LIFTED = 1.0  # most nats that float32 may cost: exceeded at logits / T of millions
LEAST = 2e-38  # more than `exp_lanes` of -inf

# Proven to be enough by proofs/intervals.py.
LIFT, REACH = 2.0**-21, 100.0  # error of a float32 exponent: LIFT (|top| + REACH)
SUM_SPARE = 1e-5  # of sums of float32 exponentials
KNOWN_SPARE = 2.0**-40  # of exponentials of known logits; each addition takes UNIT64 more
LOG_SPARE = 2.0**-50  # of |top| and a sum's logarithm, for the logarithm and its addition

ALL_ROWS, BEFORE, REST, UNSURE = range(4)  # sides of a logit

# Exponents are x inverse - top.
Scale = namedtuple("Scale", "inverse top lift")
# Sums of e^{x inverse - top}: an estimate, and bounds of the true sum.
Sums = namedtuple("Sums", "estimate low high")


@inline
def scale_of(intervals, inverse):
    top = intervals.state[MOST] * inverse
    return Scale(inverse, top, LIFT * (abs(top) + REACH))


@inline
def sum_all(descriptor, intervals, scale):
    limits = np.float32(np.inf), np.float32(np.inf)
    return _sum_side(descriptor, intervals, scale, ALL_ROWS, limits, known_sum(intervals, scale))


@inline
def scaled_logit(intervals, scale, row):
    return (intervals.logits[row] - intervals.state[MOST]) * scale.inverse


@inline
def known_sum(intervals, scale):
    total = 0.0
    for i in range(int(intervals.state[COUNT])):
        total += exp(scaled_logit(intervals, scale, intervals.known[i]))
    return total


@inline
def sum_known(descriptor, intervals, scale):
    estimates = zeros64()
    for place in range(0, places_of(descriptor), LANES):
        estimates += widen(exponentials_at(intervals, scale, place)[0])
    others = Sums(pair_sum(estimates), 0.0, np.inf)
    return with_known(intervals, known_sum(intervals, scale), others)


@inline
def _sum_side(descriptor, intervals, scale, side, limits, known):
    coarse = _sum_state(descriptor, intervals, scale, COARSE, side, limits)
    fine = _sum_state(descriptor, intervals, scale, FINE, side, limits)
    return _sum_of(with_known(intervals, known, coarse), fine)


@inline
def _sum_of(one, other):
    return Sums(one.estimate + other.estimate, one.low + other.low, one.high + other.high)


@inline
def with_known(intervals, known, sums):
    spare = KNOWN_SPARE + intervals.state[COUNT] * UNIT64
    return _sum_of(Sums(known, known * (1 - spare), known * (1 + spare)), sums)


@inline
def sums_of(estimate, low, high, size):
    low = max(0.0, low - size * LEAST) * (1 - SUM_SPARE)
    return Sums(estimate, low, high * (1 + SUM_SPARE))


@inline
def _sum_state(descriptor, intervals, scale, state, side, limits):
    """Return sums over the rows of a state on one side, by their own bounds and by a joint one.

    All estimates' errors are a vector no longer than `error`. By Cauchy-Schwarz a sum's error is,
    up to second order, at most that times the length of the weights.
    """
    estimates, squares, lows, highs, most = zeros64(), zeros64(), zeros64(), zeros64(), zeros32()
    size = places_of(descriptor)
    if state == FINE and intervals.state[REFINED] == 0.0:
        return Sums(0.0, 0.0, 0.0)
    few = state == FINE or side != ALL_ROWS
    for place in range(0, size, LANES):
        if few:
            chosen = on_side(intervals, place, state, side, limits, splat32(1))
            if lanes_not_below(chosen, np.float32(1)) == 0:
                continue
        estimate, low, high = exponentials_at(intervals, scale, place)
        estimate = on_side(intervals, place, state, side, limits, estimate)
        low = on_side(intervals, place, state, side, limits, low)
        high = on_side(intervals, place, state, side, limits, high)
        wide = widen(estimate)
        estimates += wide
        squares = multiply_add(wide, wide, squares)
        lows += widen(low)
        highs += widen(high)
        most = larger(most, high)
    estimate, low, high = sums_of(pair_sum(estimates), pair_sum(lows), pair_sum(highs), size)
    error = intervals.coded.factors[ALL if state == COARSE else FINE_ALL] * scale.inverse
    joint = sqrt(pair_sum(squares)) * error
    spread = exp(scale.inverse * intervals.coded.factors[MARGIN] + scale.lift) * (1 + SUM_SPARE)
    if joint < np.inf:
        # An estimate plus its error is at most the upper bound, up to the margin.
        second = float(largest_lane(most)) * spread / 2 * error * error
        low = max(low, (estimate - size * LEAST - joint * (1 + SUM_SPARE)) / spread)
        high = min(high, (estimate + joint + second) * spread)
    return Sums(estimate, low, high)


@inline
def on_side(intervals, place, state, side, limits, lanes):
    lanes = where_equal(intervals.states, place, state, lanes)
    if side == ALL_ROWS:
        return lanes
    under, over = limits
    upper = load(intervals.uppers, place)
    if side == REST:
        return where_below(upper, under, lanes)
    lower = _lower(load(intervals.estimates, place), upper)
    before = where_below(zeros32() - lower, over, lanes)
    if side == BEFORE:
        return before
    return lanes - before - where_below(upper, under, lanes)


@inline
def exponentials_at(intervals, scale, place):
    inverse, down = np.float32(scale.inverse), np.float32(-scale.top)
    lowered, lifted = np.float32(-scale.top - scale.lift), np.float32(scale.lift - scale.top)
    upper, estimate = load(intervals.uppers, place), load(intervals.estimates, place)
    # Fine bounds may exceed the largest logit. Bounds of -inf give NaN: the lowest exponent.
    most = np.float32(scale.lift)
    return (
        exp_lanes(smaller(multiply_add(estimate, inverse, down), most)),
        exp_lanes(multiply_add(_lower(estimate, upper), inverse, lowered)),
        exp_lanes(smaller(multiply_add(upper, inverse, lifted), most)),
    )


@inline
def _lower(estimate, upper):
    return estimate * np.float32(2) - upper


@inline
def limits_of(logit):
    """Return (a, b): float32 values below a are below the logit, those above -b are above it."""
    return np.float32(logit - SPARE * abs(logit)), np.float32(-(logit + SPARE * abs(logit)))


@inline
def split_known(intervals, scale, row, logit):
    first = last = 0.0
    for i in range(int(intervals.state[COUNT])):
        other = int(intervals.known[i])
        value = intervals.logits[other]
        weight = exp(scaled_logit(intervals, scale, other))
        if value > logit or (value == logit and other < row):
            first += weight
        else:
            last += weight
    return first, last


@inline_once
def split_sums(descriptor, intervals, scale, row, logit):
    limits, (first, last) = limits_of(logit), split_known(intervals, scale, row, logit)
    return (
        _sum_side(descriptor, intervals, scale, BEFORE, limits, first),
        _sum_side(descriptor, intervals, scale, REST, limits, last),
        _sum_side(descriptor, intervals, scale, UNSURE, limits, 0.0),
    )


@inline
def write_interval(scale, sums, log_z):
    off = LOG_SPARE * (abs(scale.top) + abs(log(sums.high)) + abs(log(sums.low)))
    low, high = scale.top + log(sums.low) - off, scale.top + log(sums.high) + off
    log_z[TOP], log_z[LOW], log_z[HIGH] = 0.0, low, high
    log_z[VALUE] = min(max(scale.top + log(sums.estimate), low), high)
