"""The sieve: bound every row by the sketch, compute only rows that may be among the best.

For each query, compute the best estimates among the rows that are often among the best: their k-th
best exact logit is the threshold. Then compute all with bounds that reach it.
"""

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.simd.dots import pad_lanes, row_of
from logitsieve.kernels.simd.exponential import exp_lanes
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    multiply_add,
    pair_sum,
    smaller,
    store,
    widen,
    zeros32,
)
from logitsieve.kernels.simd.masks import append_lanes, first_lanes, lanes_not_below, where_below
from logitsieve.kernels.simd.pointers import as_float32, as_int32, nowhere, shift, size_of
from logitsieve.kernels.sketch.bounds import base_at, bound_four, store_bases
from logitsieve.kernels.sketch.encode_query import (
    LENGTH,
    MARGIN,
    REST,
    coded_at,
    encode_query,
    factors_of,
    turn_rows,
)
from logitsieve.kernels.sketch.levels import (
    FOUR,
    first_bounds,
    first_sums,
    last_bounds,
    last_sums,
    middle_bounds,
    middle_sums,
    uppers_by_lengths,
)
from logitsieve.kernels.sketch.sketch import sketch_at
from logitsieve.kernels.sketch.thresholds import SEEDS, take_best, threshold_of
from logitsieve.kernels.topk.descriptor import ROWS, SHARE, SHARES, matrix_at
from logitsieve.kernels.topk.queries import CHUNK, MOST, NORM, STATE, SUMMED, TOTAL, VARIANCE
from logitsieve.kernels.topk.scan import LISTED, scan_one

# log of e^logit given an estimate, in variances of its error: by level 0, and by others (measured).
HALF, SHRINK = np.float32(0.5), np.float32(-0.1875)
ONE = np.float32(1)
NEGLIGIBLE = np.float32(-25)  # nats below the best row
FIRST = 32  # least number of groups that give the threshold
FIRST_ROWS = 8  # least number of their rows for each answer
TILE = 64  # groups with codes in the cache for all queries
AT_MOST = CHUNK + (FOUR + 1) * LANES  # rows that pass before some are computed

# One query's scratch: float32 estimates and bounds of the first groups; ids of computed rows, and
# from BEGIN to END of rows to compute.
Sieved = namedtuple("Sieved", "coded estimates uppers ids counts end")
EVERY_LANE = (1 << LANES) - 1
BEGIN, END, DONE = range(3)
COUNTS = 3

# Whether `ids` collects all computed rows; of one type, like scan.LISTED.
KEEP, FORGET = np.bool_(True), np.bool_(False)


@inline
def first_groups(descriptor, limit):
    """Return the number of groups that give the threshold; 0 if all logits should be computed."""
    groups = (descriptor[ROWS] + LANES - 1) // LANES
    count = max(FIRST, (FIRST_ROWS * limit + LANES - 1) // LANES)
    return 0 if 2 * FIRST_ROWS * limit > descriptor[ROWS] else min(groups, count)


@inline
def sieved_at(descriptor, start, groups, limit, keep):
    coded = coded_at(descriptor, start)
    estimates = as_float32(shift(coded.end, COUNTS))
    uppers = shift(estimates, groups * LANES)
    ids = max(2 * SEEDS * limit, AT_MOST) + (descriptor[ROWS] + AT_MOST if keep else 0)
    return Sieved(
        coded, estimates, uppers, as_int32(shift(uppers, groups * LANES)), coded.end,
        shift(coded.end, COUNTS + groups * LANES + (ids + 1) // 2),
    )  # fmt: skip


@inline
def sieve(descriptor, queries, start, groups, count, keep):
    """Offer to each query every row that may be among its best; `start` is scratch of all.

    A share has every few tiles, so that all have rows that are often among the best, and the first
    groups as well, for the threshold.
    """
    sketch, first, last, limit = sketch_at(descriptor), np.int64(0), groups, queries.limit
    ahead, step = descriptor[SHARE] * TILE, descriptor[SHARES] * TILE
    stride = size_of(sieved_at(descriptor, nowhere(), groups, limit, keep))
    turn_rows(descriptor, queries.hidden, count, start, stride)
    while first < sketch.groups:
        for q in range(count):
            sieved = sieved_at(descriptor, row_of(start, q, stride), groups, limit, keep)
            if first == 0:
                encode_query(descriptor, queries.states[STATE * q + NORM], sieved.coded, limit)
                _sieve_first(descriptor, sieved, queries, q, groups, keep)
            settles = last == groups or first + step >= sketch.groups
            _sieve_tile(descriptor, sieved, queries, q, first, last, groups, settles, keep)
        first = last + ahead if first == 0 else first + step
        last = min(first + TILE, sketch.groups)


@inline_once
def _sieve_first(descriptor, sieved, queries, q, groups, keep):
    sketch, query = sketch_at(descriptor), factors_of(sieved.coded.factors)
    estimates, uppers, limit = sieved.estimates, sieved.uppers, queries.limit
    for group in range(0, groups, FOUR):
        bound_four(sketch, sieved.coded.planes, query, group, groups, estimates, uppers)
    rows = min(groups * LANES, sketch.rows)
    seeds = take_best(estimates, uppers, rows, limit, sieved.ids)
    sieved.counts[BEGIN], sieved.counts[DONE] = seeds if keep else 0, seeds
    sieved.counts[END] = sieved.counts[BEGIN]
    scan_one(matrix_at(descriptor, 0), LISTED, sieved.ids, np.int64(0), seeds, queries, q)


@inline_once
def _sieve_tile(descriptor, sieved, queries, q, first, last, groups, settles, keep):
    sketch, query = sketch_at(descriptor), factors_of(sieved.coded.factors)
    threshold, end = _threshold(sieved, queries, q), int(sieved.counts[END])
    state, shares = shift(queries.states, STATE * q), _deviations(sketch, sieved.coded.factors)
    for four in range(first, last, FOUR):
        end, rises = _pass_four(
            sketch, sieved, query, four, last, groups, threshold, end, state, shares
        )
        waiting = end - int(sieved.counts[BEGIN])
        if waiting >= CHUNK or rises or (settles and four + FOUR >= last):
            end = _settle(descriptor, sieved, queries, q, end, keep)
            threshold = _threshold(sieved, queries, q)
    sieved.counts[END] = end


@inline_once
def _pass_four(sketch, sieved, query, four, last, groups, threshold, end, state, shares):
    """Append the ids of four groups' rows that pass all levels, each read if others left any.

    Also returns whether an estimate by the last one reaches the threshold, and so may raise it. If
    the query is summed, e^logit of all other rows is estimated by the last level that was read.
    """
    planes, rises, summed = sieved.coded.planes, False, state[SUMMED] != 0.0
    reached = store_bases(sketch, sieved.coded, query, four, last, threshold, summed)
    length, deviation = shares
    total, variance = zeros32(), zeros32()
    for group in range(four, min(four + FOUR, last) if reached or summed else four):
        mask = reached >> LANES * (group - four) & EVERY_LANE
        base = base_at(sieved.coded, group - four)
        if mask == 0:
            if summed:
                bounds = base[0], uppers_by_lengths(sketch, query, base, group)
                added = _estimated(sketch, sieved, group, groups, bounds, length, HALF, state)
                total, variance = total + added[0], variance + added[1]
            continue
        sums = first_sums(sketch, planes, group)
        estimate, upper = first_bounds(sketch, query, sums, base, group)
        known = load(sieved.uppers, group * LANES) if group < groups else upper
        mask &= lanes_not_below(smaller(upper, known), threshold)  # -inf of computed rows
        if mask != 0:
            sums = middle_sums(sketch, planes, sums, group)
            estimate, upper = middle_bounds(sketch, query, sums, base, group)
            mask &= lanes_not_below(upper, threshold)
        if mask != 0:
            sums = last_sums(sketch, planes, sums, group)
            estimate, upper = last_bounds(sketch, query, sums, base, group)
            mask &= lanes_not_below(upper, threshold)
            mask = first_lanes(mask, sketch.rows - group * LANES)
            rises = rises or mask & lanes_not_below(estimate, threshold) != 0
            end = append_lanes(sieved.ids, end, mask, group * LANES)
        if summed:
            bounds = estimate, upper
            added = _estimated(sketch, sieved, group, groups, bounds, deviation, SHRINK, state)
            left = np.float32(threshold)
            total += where_below(upper, left, added[0]) if mask != 0 else added[0]
            variance += where_below(upper, left, added[1]) if mask != 0 else added[1]
    if summed:
        state[TOTAL] += pair_sum(widen(total))
        state[VARIANCE] += pair_sum(widen(variance))
    return end, rises


@inline
def _deviations(sketch, factors):
    """Return standard deviations of products of tails over their bounds: by length, by a level."""
    length = 1.0 / np.sqrt(max(1.0, float(sketch.tail_width)))
    return np.float32(length), np.float32(length * factors[LENGTH] / factors[REST])


@inline
def _estimated(sketch, sieved, group, groups, bounds, deviation, half, state):
    """Return estimates of e^(logit - MOST) of a group, and these times the variances of errors.

    0 if negligible. By level 0 a logit is the estimate and a product of tails; by others an
    estimate is the logit and an error, of which those that stay here are the smaller (docs).
    """
    off = (bounds[1] - bounds[0]) * deviation
    variance, estimate = off * off, bounds[0]
    if group < groups:
        estimate = smaller(estimate, load(sieved.uppers, group * LANES))
    exponents = multiply_add(variance, half, estimate)
    exponents = smaller(multiply_add(exponents, ONE, np.float32(-state[MOST])), zeros32())
    if lanes_not_below(exponents, NEGLIGIBLE) == 0:
        return zeros32(), zeros32()
    if sketch.rows - group * LANES < LANES:
        scratch = sieved.coded.rotated
        store(scratch, 0, exponents)
        pad_lanes(scratch, sketch.rows - group * LANES)
        exponents = load(scratch, 0)
    weights = exp_lanes(exponents)
    return weights, weights * variance


@inline
def _threshold(sieved, queries, q):
    return threshold_of(queries, q, sieved.coded.factors[MARGIN])


@inline_once
def _settle(descriptor, sieved, queries, q, end, keep):
    """Compute the rows that wait; return where others will."""
    begin = int(sieved.counts[BEGIN])
    scan_one(matrix_at(descriptor, 0), LISTED, sieved.ids, begin, end, queries, q)
    sieved.counts[DONE] += end - begin
    sieved.counts[BEGIN] = end if keep else 0
    return int(sieved.counts[BEGIN])
