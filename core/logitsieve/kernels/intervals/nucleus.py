"""The rows that top-p and min-p leave, decided as far as draws need it.

A row is in the nucleus if the mass before it is less than top-p of all. Sums over intervals decide,
which are narrowed until they do; each answer holds for all rows before the one, or after it.

Shape letters: V vocabulary.
"""

from __future__ import annotations

from collections import namedtuple
from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, splice
from logitsieve.kernels.intervals.intervals import BELOW, COUNT, MOST, places_of
from logitsieve.kernels.intervals.narrow import narrow, narrow_unsure
from logitsieve.kernels.intervals.sums import (
    Sums,
    exponentials_at,
    known_beside,
    scaled_logit,
    sum_beside,
    with_known,
)
from logitsieve.kernels.sampling.gumbel import BLOCK, SPARE
from logitsieve.kernels.simd.dots import padded
from logitsieve.kernels.simd.exponential import exp64_lanes
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    multiply_add,
    pair_sum,
    splat64,
    store,
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.masks import where_below, without
from logitsieve.kernels.simd.pointers import as_float32, as_int32, shift
from logitsieve.kernels.sketch.sketch import UNIT64
from logitsieve.kernels.topk.descriptor import ROWS

HALVINGS, REACHED = 16, 40.0  # of a range of so many nats below the best
TRIED = 6  # times that intervals are narrowed until a row is decided

# Pointers to a float32 weight of each row, at least e^{(x - most) inverse}, 0 for what is not drawn
# from; the heaviest of each block, and a list of blocks; candidates, and their noise; the float64
# `cut`.
Race = namedtuple("Race", "weights heaviest blocks ids noise cut size")
# Rows of at least IN are among those that filters leave, of at most OUT are not: logits and rows.
IN, IN_ROW, OUT, OUT_ROW, MIN_P, TOP_P = range(6)
CUT = 6
NOBODY, UNDECIDED = -1, -2
# What proofs/intervals.py proves to be enough. Of the mass of all: what is closer to the edge of a
# nucleus is for all logits to decide, whose sums are off by less, and by UNIT64 for each addition.
CLOSE = 1e-12
EDGE = 2.0**-49  # of a logit and of its distance from the largest, for the edge of min-p


@inline
def race_room(descriptor):
    size = padded(descriptor[ROWS])
    return size // 2 + padded(size // BLOCK) + LANES + (size + LANES) // 2 + size + LANES + CUT


@inline
def race_at(descriptor, scratch):
    size = padded(descriptor[ROWS])
    heaviest = shift(scratch, size // 2)
    blocks = shift(heaviest, padded(size // BLOCK) // 2)
    ids = shift(blocks, padded(size // BLOCK) // 2 + LANES)
    noise = shift(ids, (size + LANES) // 2)
    return Race(
        as_float32(scratch), as_float32(heaviest), as_int32(blocks), as_int32(ids), noise,
        shift(noise, size + LANES), size,
    )  # fmt: skip


@inline
def below_of(inverse, min_p):
    """How far below the largest logit min-p leaves rows, at most; 0 where it leaves all."""
    return (EDGE - (1.0 + EDGE) * log(min_p)) / inverse if min_p > 0.0 else 0.0


@inline
def weigh_known(intervals, scale, race):
    """A weight for each row that filters leave, all of which are known; sums over them."""
    for row in range(0, race.size, LANES):
        store(race.weights, row, zeros32())
    total = 0.0
    for i in range(int(intervals.state[COUNT])):
        row = np.int64(intervals.known[i])
        if not is_out(intervals, scale, race, row):
            weight = exp(scaled_logit(intervals, scale, row))
            race.weights[row] = np.float32(SPARE * weight)
            total += weight
    return with_known(intervals, total, Sums(0.0, 0.0, 0.0))


@inline
def drop_below(race, weight):
    """Leave out rows of less weight."""
    least = np.float32(weight)
    for row in range(0, race.size, LANES):
        lanes = load(race.weights, row)
        store(race.weights, row, without(where_below(lanes, least, lanes), lanes))


@inline
def is_out(intervals, scale, race, row):
    logit = intervals.logits[row]
    if race.cut[MIN_P] > 0.0:  # the weight of head `exact`, to the last bit
        weight = pair_sum(exp64_lanes(splat64(scaled_logit(intervals, scale, row)))) / LANES
        if weight < race.cut[MIN_P]:
            return True
    return logit < race.cut[OUT] or (logit == race.cut[OUT] and row >= race.cut[OUT_ROW])


@splice
def in_nucleus(descriptor, intervals, scale, race, row):
    """1 if the nucleus has a known row, 0 if it has not, or UNDECIDED.

    It has it if the mass before it is less than top-p of all.
    """
    logit, top_p = intervals.logits[row], race.cut[TOP_P]
    if logit > race.cut[IN] or (logit == race.cut[IN] and row <= race.cut[IN_ROW]):
        return 1
    if intervals.state[BELOW] > 0.0:  # all rows before it are known, and often that is enough
        first, last = known_beside(intervals, scale, row, logit)
        before = with_known(intervals, first, Sums(0.0, 0.0, 0.0))
        rest = with_known(intervals, last, Sums(0.0, 0.0, 0.0))
        edge = _close(descriptor) * (before.high + rest.high)
        if before.high * (1.0 - top_p) + edge < top_p * rest.low:
            race.cut[IN], race.cut[IN_ROW] = logit, row
            return 1
    for _ in range(TRIED):
        before, rest, unsure = sum_beside(descriptor, intervals, scale, row, logit)
        edge = _close(descriptor) * (before.high + unsure.high + rest.high)
        above = before.high + unsure.high
        if above == 0.0 or above * (1.0 - top_p) + edge < top_p * rest.low:
            race.cut[IN], race.cut[IN_ROW] = logit, row
            return 1
        if before.low * (1.0 - top_p) > top_p * (rest.high + unsure.high) + edge:
            race.cut[OUT], race.cut[OUT_ROW] = logit, row
            drop_below(race, exp(scaled_logit(intervals, scale, row)) / SPARE)
            return 0
        apart = abs(top_p * rest.estimate - (1.0 - top_p) * before.estimate) / 2
        if unsure.high > apart:
            if not narrow_unsure(descriptor, intervals, logit):
                return UNDECIDED
        elif not narrow(descriptor, intervals, scale, apart):
            return UNDECIDED
    return UNDECIDED


@inline
def _close(descriptor):
    return CLOSE + descriptor[ROWS] * UNIT64


@splice
def sums_left(descriptor, intervals, scale, race, sums, kept):
    """Sums over what filters leave, of those over all rows and those that min-p leaves."""
    estimate, low, high = sums.estimate, sums.low, sums.high
    close, most = _close(descriptor), intervals.state[MOST]
    if race.cut[TOP_P] < 1.0:  # the mass up to the last row that is in, at most that of IN
        last = exp((race.cut[IN] - most) * scale.inverse) * (1.0 + close)
        low, estimate = (
            max(1.0, race.cut[TOP_P] * low),
            _estimated_mass(descriptor, intervals, scale, race.cut[TOP_P] * estimate),
        )
        high = min(high, race.cut[TOP_P] * high + last)
    if race.cut[MIN_P] > 0.0 and intervals.state[BELOW] == 0.0:
        below = log(race.cut[MIN_P]) / scale.inverse
        limit, off = most + below, EDGE * (abs(most) - below + 1.0 / scale.inverse)
        for _ in range(2):  # few rows: coarse intervals become fine ones, then logits
            narrow_unsure(descriptor, intervals, limit)
        sure, _, _ = sum_beside(descriptor, intervals, scale, descriptor[ROWS], limit + off)
        kept, _, unsure = sum_beside(descriptor, intervals, scale, descriptor[ROWS], limit - off)
        kept = Sums(kept.estimate + unsure.estimate / 2, sure.low, kept.high + unsure.high)
    if race.cut[MIN_P] > 0.0:
        low, high = min(low, kept.low), min(high, kept.high)
        estimate = min(estimate, kept.estimate)
    low, high = max(1.0, low) * (1.0 - close), max(high, 1.0) * (1.0 + close)
    return Sums(min(max(estimate, low), high), low, high)


@splice
def _estimated_mass(descriptor, intervals, scale, wanted):
    """The mass of the best rows that have so much, by estimates: by bisection over logits."""
    size, most, one = places_of(descriptor), intervals.state[MOST], splat64(1.0)
    if intervals.state[BELOW] > 0.0:
        size = 0  # rows that are left are known
    for place in range(0, size, LANES):
        estimate, _, _ = exponentials_at(intervals, scale, place)
        store(intervals.gaps, place, estimate)
    least, above, mass = -REACHED / scale.inverse, 0.0, wanted  # relative to the largest logit
    for _ in range(HALVINGS):
        middle = (least + above) / 2
        limit, rest = np.float32(most + middle), zeros64()
        for place in range(0, size, LANES):
            weights, estimates = load(intervals.gaps, place), load(intervals.estimates, place)
            reached = without(where_below(estimates, limit, weights), weights)
            rest = multiply_add(widen(reached), one, rest)
        total = pair_sum(rest)
        for i in range(int(intervals.state[COUNT])):
            row = intervals.known[i]
            if intervals.logits[row] - most >= middle:
                total += exp(scaled_logit(intervals, scale, row))
        if total >= wanted:
            least, mass = middle, total
        else:
            above = middle
    return mass
