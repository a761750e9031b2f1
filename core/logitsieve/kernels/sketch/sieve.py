"""The sieve: bound every row by the sketch, compute only rows that may be among the best.

For each query, compute the best estimates among the rows that are often among the best: their k-th
best exact logit is the threshold. Then compute all with bounds that reach it.
"""

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.simd.dots import four_from, row_of
from logitsieve.kernels.simd.lanes import LANES, load, smaller
from logitsieve.kernels.simd.masks import append_lanes, first_lanes, lanes_not_below
from logitsieve.kernels.simd.pointers import as_float32, as_int32, nowhere, shift, size_of
from logitsieve.kernels.sketch.bounds import base_at, bound_four, coarse_bounds, refine, store_bases
from logitsieve.kernels.sketch.encode_query import (
    AT_MOST,
    MARGIN,
    coarse_factors,
    coded_at,
    encode_query,
)
from logitsieve.kernels.sketch.levels import (
    FOUR,
    first_bounds,
    first_sums,
    last_bounds,
    last_sums,
    middle_bounds,
    middle_sums,
)
from logitsieve.kernels.sketch.sketch import sketch_at
from logitsieve.kernels.sketch.thresholds import SEEDS, take_best, threshold_of
from logitsieve.kernels.topk.descriptor import DIM, ROWS, SHARE, SHARES, matrix_at
from logitsieve.kernels.topk.queries import CHUNK, NORM, STATE
from logitsieve.kernels.topk.scan import LISTED, scan_one

FIRST = 32  # least number of groups that give the threshold
FIRST_ROWS = 8  # least number of their rows for each answer
TILE = 64  # groups with codes in the cache for all queries

# One query's scratch: float32 estimates and bounds of the first groups; places that passed; ids of
# computed rows, from BEGIN on of rows to compute.
Sieved = namedtuple("Sieved", "coded estimates uppers passed ids counts end")
EVERY_LANE = (1 << LANES) - 1
PASSED, BEGIN, DONE = range(3)
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
    passed = as_int32(shift(uppers, groups * LANES))
    ids = max(2 * SEEDS * limit, CHUNK) + AT_MOST  # seeds, or places that passed
    ids += descriptor[ROWS] if keep else 0
    return Sieved(
        coded, estimates, uppers, passed, shift(passed, AT_MOST), coded.end,
        shift(coded.end, COUNTS + groups * LANES + (AT_MOST + ids + 1) // 2),
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
    while first < sketch.groups:
        for q in range(count):
            sieved = sieved_at(descriptor, row_of(start, q, stride), groups, limit, keep)
            if first == 0:
                h = row_of(queries.hidden, q, descriptor[DIM])
                encode_query(descriptor, h, queries.states[STATE * q + NORM], sieved.coded, limit)
                _sieve_first(descriptor, sieved, queries, q, groups, keep)
            settles = last == groups or first + step >= sketch.groups
            _sieve_tile(descriptor, sieved, queries, q, first, last, groups, settles, keep)
        first = last + ahead if first == 0 else first + step
        last = min(first + TILE, sketch.groups)


@inline_once
def _sieve_first(descriptor, sieved, queries, q, groups, keep):
    sketch, query = sketch_at(descriptor), coarse_factors(sieved.coded.factors)
    estimates, uppers, limit = sieved.estimates, sieved.uppers, queries.limit
    for group in range(0, groups, FOUR):
        bound_four(sketch, sieved.coded.planes, query, group, groups, estimates, uppers)
    rows = min(groups * LANES, sketch.rows)
    seeds = take_best(estimates, uppers, sketch.order, rows, limit, sieved.ids)
    sieved.counts[PASSED], sieved.counts[DONE] = 0, seeds
    sieved.counts[BEGIN] = seeds if keep else 0
    scan_one(matrix_at(descriptor, 0), LISTED, sieved.ids, np.int64(0), seeds, queries, q)


@inline_once
def _sieve_tile(descriptor, sieved, queries, q, first, last, groups, settles, keep):
    sketch, query = sketch_at(descriptor), coarse_factors(sieved.coded.factors)
    if sketch.tail_width > 0:
        _sieve_levels(descriptor, sieved, queries, q, first, last, groups, settles, keep)
        return
    threshold, passed = _threshold(sieved, queries, q), int(sieved.counts[PASSED])
    for four in range(first, last, FOUR):
        passed = _pass_coarse(sketch, sieved, query, four, first, last, threshold, passed)
        if passed >= CHUNK or (settles and four + FOUR >= last):
            sieved.counts[PASSED] = passed
            threshold, passed = _settle(descriptor, sieved, queries, q, keep), 0
    sieved.counts[PASSED] = passed


@inline_once
def _sieve_levels(descriptor, sieved, queries, q, first, last, groups, settles, keep):
    sketch, query = sketch_at(descriptor), coarse_factors(sieved.coded.factors)
    threshold, passed = _threshold(sieved, queries, q), int(sieved.counts[PASSED])
    for four in range(first, last, FOUR):
        passed, rises = _pass_levels(sketch, sieved, query, four, last, groups, threshold, passed)
        if passed >= CHUNK or rises or (settles and four + FOUR >= last):
            sieved.counts[PASSED] = passed
            threshold, passed = _settle(descriptor, sieved, queries, q, keep), 0
    sieved.counts[PASSED] = passed


@inline_once
def _pass_coarse(sketch, sieved, query, four, first, last, threshold, passed):
    if first > 0:
        bounds = coarse_bounds(sketch, sieved.coded.planes, query, four, last)
        u0, u1, u2, u3 = bounds[0][1], bounds[1][1], bounds[2][1], bounds[3][1]
    else:
        g0, g1, g2, g3 = four_from(four, last)
        u0, u1 = load(sieved.uppers, g0 * LANES), load(sieved.uppers, g1 * LANES)
        u2, u3 = load(sieved.uppers, g2 * LANES), load(sieved.uppers, g3 * LANES)
    passed = _append_passed(sketch, sieved.passed, passed, u0, threshold, four, last)
    passed = _append_passed(sketch, sieved.passed, passed, u1, threshold, four + 1, last)
    passed = _append_passed(sketch, sieved.passed, passed, u2, threshold, four + 2, last)
    return _append_passed(sketch, sieved.passed, passed, u3, threshold, four + 3, last)


@inline
def _append_passed(sketch, places, passed, uppers, threshold, group, last):
    mask = lanes_not_below(uppers, threshold)
    if mask != 0 and group < last:
        mask = first_lanes(mask, sketch.rows - group * LANES)
        passed = append_lanes(places, passed, mask, group * LANES)
    return passed


@inline_once
def _pass_levels(sketch, sieved, query, four, last, groups, threshold, passed):
    """Like `_pass_coarse`, through levels, each read for groups that passed the one before.

    Also returns whether an estimate by the last one reaches the threshold, and so may raise it.
    """
    planes, levels, rises = sieved.coded.planes, query.levels, False
    reached = store_bases(sketch, sieved.coded, query, four, last, threshold)
    for group in range(four, min(four + FOUR, last) if reached else four):
        mask = reached >> LANES * (group - four) & EVERY_LANE
        if mask == 0:
            continue
        base, sums = base_at(sieved.coded, group - four), first_sums(sketch, planes, group)
        _, upper = first_bounds(sketch, levels, sums, base, group)
        if group < groups:  # computed rows have bounds of -inf
            upper = smaller(upper, load(sieved.uppers, group * LANES))
        mask &= lanes_not_below(upper, threshold)
        if mask != 0:
            sums = middle_sums(sketch, planes, sums, group)
            _, upper = middle_bounds(sketch, levels, sums, base, group)
            mask &= lanes_not_below(upper, threshold)
        if mask != 0:
            sums = last_sums(sketch, planes, sums, group)
            estimate, upper = last_bounds(sketch, levels, sums, base, group)
            mask &= lanes_not_below(upper, threshold)
            mask = first_lanes(mask, sketch.rows - group * LANES)
            rises = rises or mask & lanes_not_below(estimate, threshold) != 0
            passed = append_lanes(sieved.passed, passed, mask, group * LANES)
    return passed, rises


@inline
def _threshold(sieved, queries, q):
    return threshold_of(queries, q, sieved.coded.factors[MARGIN])


@inline_once
def _settle(descriptor, sieved, queries, q, keep):
    sketch, passed, ids = sketch_at(descriptor), int(sieved.counts[PASSED]), sieved.passed
    threshold, begin = _threshold(sieved, queries, q), int(sieved.counts[BEGIN])
    for i in range(passed):
        ids[i] = sketch.order[ids[i]]
    coarse, end = sketch.tail_width == 0, begin
    if coarse:
        refine(sketch, sieved.coded, ids, passed)
    for i in range(passed):
        sieved.ids[end] = ids[i]
        end += not (coarse and sieved.coded.uppers[i] < threshold)
    scan_one(matrix_at(descriptor, 0), LISTED, sieved.ids, begin, end, queries, q)
    sieved.counts[PASSED], sieved.counts[BEGIN] = 0, end if keep else 0
    sieved.counts[DONE] += end - begin
    return _threshold(sieved, queries, q)
