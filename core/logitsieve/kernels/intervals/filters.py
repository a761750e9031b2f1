"""The rows that top-p and min-p leave, decided as far as draws need it.

A row is in the nucleus if the mass before it is less than top-p of all; then so are all rows before
it. Intervals are narrowed until sums decide.
"""

from collections import namedtuple
from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.intervals.intervals import BELOW, COUNT, MOST, places_of
from logitsieve.kernels.intervals.narrow import narrow, narrow_unsure
from logitsieve.kernels.intervals.sums import (
    Sums,
    exponentials_at,
    limits_of,
    scaled_logit,
    split_known,
    split_sums,
    sums_of,
    with_known,
)
from logitsieve.kernels.sampling.gumbel import BLOCK, SPARE
from logitsieve.kernels.simd.dots import padded
from logitsieve.kernels.simd.exponential import exp64_lanes
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    pair_sum,
    splat64,
    store,
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.masks import lanes_not_below, where_below
from logitsieve.kernels.simd.pointers import as_float32, as_int32, shift
from logitsieve.kernels.sketch.sketch import UNIT64
from logitsieve.kernels.topk.descriptor import ROWS

HALVINGS, REACHED = 12, 40.0  # steps of a bisection over that many nats below the best
TRIED = 6

# Pointers: float32 weights of rows, at least e^{(x - most) inverse} or 0; the heaviest of each
# block, and a list of blocks; candidates and their noise; the float64 `cut`.
DrawState = namedtuple("DrawState", "weights heaviest blocks ids noise cut size end")
# Filters leave rows from (logit IN, row IN_ROW) up and exclude them from (OUT, OUT_ROW) down. All
# rows together weigh at least LEAST_OF_ALL.
IN, IN_ROW, OUT, OUT_ROW, MIN_P, TOP_P, LEAST_OF_ALL = range(7)
CUT = 7
NO_ROW, UNDECIDED = -1, -2
# Proven to be enough by proofs/intervals.py. All logits decide closer to the edge of a nucleus than
# this share of the total mass; each addition takes UNIT64 more.
CLOSE = 1e-12
EDGE = 2.0**-49  # of a logit and of its distance from the largest, for the edge of min-p


@inline
def draw_state_at(descriptor, start):
    size = padded(descriptor[ROWS])
    heaviest = shift(start, size // 2)
    blocks = shift(heaviest, padded(size // BLOCK) // 2)
    ids = shift(blocks, padded(size // BLOCK) // 2 + LANES)
    noise = shift(ids, (size + LANES) // 2)
    cut = shift(noise, size + LANES)
    return DrawState(
        as_float32(start), as_float32(heaviest), as_int32(blocks), as_int32(ids), noise, cut, size,
        shift(cut, CUT),
    )  # fmt: skip


@inline
def below_of(inverse, min_p):
    """Return the distance below the largest logit where min-p cuts, rounded up; 0 without min-p."""
    return (EDGE - (1.0 + EDGE) * log(min_p)) / inverse if min_p > 0.0 else 0.0


@inline
def weigh_known(intervals, scale, draws):
    for row in range(0, draws.size, LANES):
        store(draws.weights, row, zeros32())
    total = 0.0
    for i in range(int(intervals.state[COUNT])):
        row = np.int64(intervals.known[i])
        if not is_out(intervals, scale, draws, row):
            weight = exp(scaled_logit(intervals, scale, row))
            draws.weights[row] = np.float32(SPARE * weight)
            total += weight
    return with_known(intervals, total, Sums(0.0, 0.0, 0.0))


@inline
def drop_below(draws, weight):
    least = np.float32(weight)
    for row in range(0, draws.size, LANES):
        lanes = load(draws.weights, row)
        store(draws.weights, row, lanes - where_below(lanes, least, lanes))


@inline
def is_out(intervals, scale, draws, row):
    logit = intervals.logits[row]
    if draws.cut[MIN_P] > 0.0:  # bit for bit the weight in head `exact`
        weight = pair_sum(exp64_lanes(splat64(scaled_logit(intervals, scale, row)))) / LANES
        if weight < draws.cut[MIN_P]:
            return True
    return logit < draws.cut[OUT] or (logit == draws.cut[OUT] and row >= draws.cut[OUT_ROW])


@inline_once
def in_nucleus(descriptor, intervals, scale, draws, row):
    """Return 1 if a known row is in the nucleus, 0 if not, or UNDECIDED."""
    logit, top_p = intervals.logits[row], draws.cut[TOP_P]
    if logit > draws.cut[IN] or (logit == draws.cut[IN] and row <= draws.cut[IN_ROW]):
        return 1
    if intervals.state[BELOW] > 0.0:  # all rows before it are known: often enough
        first, last = split_known(intervals, scale, row, logit)
        before = with_known(intervals, first, Sums(0.0, 0.0, 0.0))
        rest = with_known(intervals, last, Sums(0.0, 0.0, 0.0))
        edge = _close(descriptor) * (before.high + rest.high)
        if before.high * (1.0 - top_p) + edge < top_p * rest.low:
            draws.cut[IN], draws.cut[IN_ROW] = logit, row
            return 1
    if _surely_in(descriptor, intervals, scale, draws, row):
        draws.cut[IN], draws.cut[IN_ROW] = logit, row
        return 1
    for _ in range(TRIED):
        before, rest, unsure = split_sums(descriptor, intervals, scale, row, logit)
        edge = _close(descriptor) * (before.high + unsure.high + rest.high)
        above = before.high + unsure.high
        if above == 0.0 or above * (1.0 - top_p) + edge < top_p * rest.low:
            draws.cut[IN], draws.cut[IN_ROW] = logit, row
            return 1
        if before.low * (1.0 - top_p) > top_p * (rest.high + unsure.high) + edge:
            draws.cut[OUT], draws.cut[OUT_ROW] = logit, row
            drop_below(draws, exp(scaled_logit(intervals, scale, row)) / SPARE)
            return 0
        gap = abs(top_p * rest.estimate - (1.0 - top_p) * before.estimate) / 2
        if unsure.high > gap:
            if not narrow_unsure(descriptor, intervals, logit):
                return UNDECIDED
        elif not narrow(descriptor, intervals, scale, gap):
            return UNDECIDED
    return UNDECIDED


@inline_once
def _surely_in(descriptor, intervals, scale, draws, row):
    """Decide for most rows at a tenth of the time: only rows that may be before it are weighed."""
    logit, most = intervals.logits[row], zeros64()
    least, (first, _) = limits_of(logit)[0], split_known(intervals, scale, row, logit)
    for place in range(0, places_of(descriptor), LANES):
        upper = load(intervals.uppers, place)
        if lanes_not_below(upper, least) != 0:
            high = exponentials_at(intervals, scale, place)[2]
            most += widen(high - where_below(upper, least, high))
    others = sums_of(0.0, 0.0, pair_sum(most), places_of(descriptor))
    before, all_ = with_known(intervals, first, others).high, draws.cut[LEAST_OF_ALL]
    return before + _close(descriptor) * (before + all_) < draws.cut[TOP_P] * all_


@inline
def _close(descriptor):
    return CLOSE + descriptor[ROWS] * UNIT64


@inline_once
def sums_left(descriptor, intervals, scale, draws, sums, remaining):
    """Return sums over the ids that filters leave, from sums over all rows and over min-p's."""
    estimate, low, high = sums.estimate, sums.low, sums.high
    close, most = _close(descriptor), intervals.state[MOST]
    if draws.cut[TOP_P] < 1.0:  # mass up to the last row in the nucleus, which weighs at most IN
        last = exp((draws.cut[IN] - most) * scale.inverse) * (1.0 + close)
        low, estimate = (
            max(1.0, draws.cut[TOP_P] * low),
            _estimated_mass(descriptor, intervals, scale, draws.cut[TOP_P] * estimate),
        )
        high = min(high, draws.cut[TOP_P] * high + last)
    if draws.cut[MIN_P] > 0.0 and intervals.state[BELOW] == 0.0:
        below = log(draws.cut[MIN_P]) / scale.inverse
        limit, off = most + below, EDGE * (abs(most) - below + 1.0 / scale.inverse)
        for _ in range(2):  # few rows: coarse to fine, fine to known
            narrow_unsure(descriptor, intervals, limit)
        sure, _, _ = split_sums(descriptor, intervals, scale, descriptor[ROWS], limit + off)
        remaining, _, unsure = split_sums(
            descriptor, intervals, scale, descriptor[ROWS], limit - off
        )
        remaining = Sums(
            remaining.estimate + unsure.estimate / 2, sure.low, remaining.high + unsure.high
        )
    if draws.cut[MIN_P] > 0.0:
        low, high = min(low, remaining.low), min(high, remaining.high)
        estimate = min(estimate, remaining.estimate)
    low, high = max(1.0, low) * (1.0 - close), max(high, 1.0) * (1.0 + close)
    return Sums(min(max(estimate, low), high), low, high)


@inline_once
def _estimated_mass(descriptor, intervals, scale, target):
    size, most = places_of(descriptor), intervals.state[MOST]
    if intervals.state[BELOW] > 0.0:
        size = 0  # all remaining rows are known
    for place in range(0, size, LANES):
        store(intervals.gaps, place, exponentials_at(intervals, scale, place)[0])
    least, above, mass = -REACHED / scale.inverse, 0.0, target  # relative to the largest logit
    for _ in range(HALVINGS):
        middle = (least + above) / 2
        limit, rest = np.float32(most + middle), zeros64()
        for place in range(0, size, LANES):
            weights, estimates = load(intervals.gaps, place), load(intervals.estimates, place)
            rest += widen(weights - where_below(estimates, limit, weights))
        total = pair_sum(rest)
        for i in range(int(intervals.state[COUNT])):
            row = intervals.known[i]
            if intervals.logits[row] - most >= middle:
                total += exp(scaled_logit(intervals, scale, row))
        if total >= target:
            least, mass = middle, total
        else:
            above = middle
    return mass
