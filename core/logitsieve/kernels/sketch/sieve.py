"""The sieve: bound every row by the sketch, compute only rows that may be among the best.

For each query, bound the rows that are often among the best and compute those with the best
estimates: their k-th best exact logit is the threshold. Then bound all other rows, and compute
those with refined bounds that reach it. A dropped row has a logit below k others.

Shape letters: V vocabulary, K answers.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, splice
from logitsieve.kernels.simd.dots import four_from, row_of
from logitsieve.kernels.simd.lanes import LANES, load, smaller, store
from logitsieve.kernels.simd.masks import append_lanes, first_lanes, lanes_not_below, lowest_bit
from logitsieve.kernels.simd.pointers import as_float32, as_int8, as_int32, shift
from logitsieve.kernels.sketch.bounds import (
    AT_MOST,
    FOUR,
    REFINED_SCRATCH,
    base_of,
    bound_four,
    coarse_factors,
    refine,
    refined_at,
    sum_four,
)
from logitsieve.kernels.sketch.levels import (
    FULL,
    drop_sixteen,
    first_level,
    last_level,
    level_queue_at,
    middle_level,
    middle_upper,
    queue_rows,
)
from logitsieve.kernels.sketch.sketch import (
    FACTORS,
    MARGIN,
    codes_scratch_size,
    encode_query,
    sketch_at,
)
from logitsieve.kernels.sketch.thresholds import SEEDS, take_best, threshold_of
from logitsieve.kernels.topk.descriptor import DIM, ROWS, matrix_at
from logitsieve.kernels.topk.queries import CHUNK, NORM, STATE
from logitsieve.kernels.topk.scan import LISTED, scan_one

FIRST = 32  # least number of groups that give the threshold
FIRST_ROWS = 8  # least number of their rows for each answer
TILE = 64  # groups: their codes stay in the cache while all queries use them

# One query's scratch. float32 estimates and bounds of the first groups; places that passed the
# coarse bounds; ids of computed rows, then of rows to compute from BEGIN on.
Sieved = namedtuple("Sieved", "planes factors refined estimates uppers passed ids counts")
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
def sieved_scratch_size(descriptor, groups, limit, collected):
    """Return the float64 values of scratch for one query that collects `collected` ids."""
    id_count = max(2 * SEEDS * limit, CHUNK) + AT_MOST + collected  # seeds, or places that passed
    fixed = codes_scratch_size(descriptor) + FACTORS + REFINED_SCRATCH + COUNTS
    return fixed + groups * LANES + (AT_MOST + id_count + 1) // 2


@inline
def sieved_at(descriptor, scratch, groups):
    factors = shift(scratch, codes_scratch_size(descriptor))
    refined = shift(factors, FACTORS)
    counts = shift(refined, REFINED_SCRATCH)
    estimates = as_float32(shift(counts, COUNTS))
    uppers = shift(estimates, groups * LANES)
    passed = as_int32(shift(uppers, groups * LANES))
    ids = shift(passed, AT_MOST)
    return Sieved(
        as_int8(scratch), factors, refined_at(refined), estimates, uppers, passed, ids, counts
    )


@inline
def sieve(descriptor, queries, sieving, stride, groups, rotated, count, keep):
    """Offer to each query every row that may be among its best; their scratch is `stride` apart."""
    sketch, first, last = sketch_at(descriptor), np.int64(0), groups
    while first < sketch.groups:
        for q in range(count):
            sieved = sieved_at(descriptor, shift(sieving, q * stride), groups)
            if first == 0:
                h, norm = (
                    row_of(queries.hidden, q, descriptor[DIM]),
                    queries.states[STATE * q + NORM],
                )
                encode_query(
                    descriptor, h, norm, rotated, sieved.planes, sieved.factors, queries.limit
                )
                _sieve_first(descriptor, sieved, queries, q, groups, keep)
            if sketch.tail_width > 0:
                _sieve_levels(descriptor, sieved, queries, q, first, last, groups, keep)
            else:
                _sieve_tile(descriptor, sieved, queries, q, first, last, groups, keep)
        first, last = last, min(last + TILE, sketch.groups)


@splice
def _sieve_first(descriptor, sieved, queries, q, groups, keep):
    sketch, query = sketch_at(descriptor), coarse_factors(sieved.factors)
    for group in range(0, groups, FOUR):
        bounds = bound_four(sketch, sieved.planes, query, group, groups)
        g0, g1, g2, g3 = four_from(group, groups)
        _store_bounds(sieved, g0, bounds[0])
        _store_bounds(sieved, g1, bounds[1])
        _store_bounds(sieved, g2, bounds[2])
        _store_bounds(sieved, g3, bounds[3])
    rows = min(groups * LANES, sketch.rows)
    seeds = take_best(
        sieved.estimates, sieved.uppers, sketch.order, rows, queries.limit, sieved.ids
    )
    sieved.counts[PASSED], sieved.counts[BEGIN], sieved.counts[DONE] = (
        0,
        seeds if keep else 0,
        seeds,
    )
    scan_one(matrix_at(descriptor, 0), LISTED, sieved.ids, np.int64(0), seeds, queries, q)


@inline
def _store_bounds(sieved, group, bounds):
    store(sieved.estimates, group * LANES, bounds[0])
    store(sieved.uppers, group * LANES, bounds[1])


@splice
def _sieve_tile(descriptor, sieved, queries, q, first, last, groups, keep):
    """Collect places in groups first .. last-1 that reach the threshold; settle them by chunks.

    The first groups, with stored bounds, and the last are settled completely.
    """
    sketch, query = sketch_at(descriptor), coarse_factors(sieved.factors)
    threshold, passed = _threshold(sieved, queries, q), int(sieved.counts[PASSED])
    settles = last == groups or last == sketch.groups
    for group in range(first, last, FOUR):
        if first == 0:
            u0, u1, u2, u3 = _stored_four(sieved, group, last)
        else:
            bounds = bound_four(sketch, sieved.planes, query, group, last)
            u0, u1, u2, u3 = bounds[0][1], bounds[1][1], bounds[2][1], bounds[3][1]
        passed = append_passed(sketch, sieved.passed, passed, u0, threshold, group, last)
        passed = append_passed(sketch, sieved.passed, passed, u1, threshold, group + 1, last)
        passed = append_passed(sketch, sieved.passed, passed, u2, threshold, group + 2, last)
        passed = append_passed(sketch, sieved.passed, passed, u3, threshold, group + 3, last)
        if passed >= CHUNK or (settles and group + FOUR >= last):
            sieved.counts[PASSED] = passed
            threshold, passed = _refine_passed(descriptor, sieved, queries, q, keep), 0
    sieved.counts[PASSED] = passed


@splice
def _sieve_levels(descriptor, sieved, queries, q, first, last, groups, keep):
    """Like `_sieve_tile`, through the levels of a sketch: each is read if the last was passed.

    Rows are queued for the last level, so that their codes are prefetched.
    """
    sketch, query = sketch_at(descriptor), coarse_factors(sieved.factors)
    levels, queue, queued = query.levels, level_queue_at(sieved.refined.rests), 0
    bases = sieved.refined.biases  # free with levels
    threshold, passed = _threshold(sieved, queries, q), int(sieved.counts[PASSED])
    for four in range(first, last, FOUR):
        sums = sum_four(sketch, sieved.planes, four, last)
        store_bases(sketch, bases, query, four, last, sums)
        for group in range(four, min(four + FOUR, last)):
            at = 2 * LANES * (group - four)
            base = load(bases, at), load(bases, at + LANES)
            twice, upper = first_level(sketch, sieved.planes, levels, base[1], group)
            if group < groups:  # computed rows have bounds of -inf
                upper = smaller(upper, load(sieved.uppers, group * LANES))
            mask = lanes_not_below(upper, threshold)
            if mask == 0:
                continue
            middle = middle_level(sketch, sieved.planes, twice, group)
            mask &= lanes_not_below(middle_upper(levels, middle, base[1]), threshold)
            if group == sketch.groups - 1:
                mask = first_lanes(mask, sketch.rows - group * LANES)
            queued = queue_rows(sketch, levels, middle, base, group, mask, queue, queued)
            if queued >= FULL:
                passed = _pass_sixteen(sketch, sieved, levels, queue, LANES, threshold, passed)
                queued = drop_sixteen(queue, queued)
        while queued > 0 and four + FOUR >= last:
            size = min(queued, LANES)
            passed = _pass_sixteen(sketch, sieved, levels, queue, size, threshold, passed)
            queued = drop_sixteen(queue, queued)
        if passed >= CHUNK or (four + FOUR >= last and (first == 0 or last == sketch.groups)):
            sieved.counts[PASSED] = passed
            threshold, passed = _compute_passed(descriptor, sieved, queries, q, keep), 0
    sieved.counts[PASSED] = passed


@inline
def _pass_sixteen(sketch, sieved, levels, queue, count, threshold, passed):
    """Append the places of the first `count` rows that reach the threshold; return their number."""
    _, upper = last_level(sketch, sieved.planes, levels, queue, count)
    mask = first_lanes(lanes_not_below(upper, threshold), count)
    while mask:
        sieved.passed[passed] = queue.places[lowest_bit(mask)]
        mask &= mask - 1
        passed += 1
    return passed


@inline
def store_bases(sketch, bases, query, group, end, sums):
    places = four_from(group, end)
    for i in range(FOUR):
        base = base_of(sketch, query, places[i], sums[i])
        store(bases, 2 * LANES * i, base[0])
        store(bases, 2 * LANES * i + LANES, base[1])


@inline
def _stored_four(sieved, group, end):
    g0, g1, g2, g3 = four_from(group, end)
    return (
        load(sieved.uppers, g0 * LANES),
        load(sieved.uppers, g1 * LANES),
        load(sieved.uppers, g2 * LANES),
        load(sieved.uppers, g3 * LANES),
    )


@inline
def append_passed(sketch, places, passed, uppers, threshold, group, last):
    """Append the places of a group before `last` that pass; return how many have passed."""
    mask = lanes_not_below(uppers, threshold)
    if mask != 0 and group < last:
        mask = first_lanes(mask, sketch.rows - group * LANES)
        passed = append_lanes(places, passed, mask, group * LANES)
    return passed


@inline
def _threshold(sieved, queries, q):
    return threshold_of(queries, q, shift(queries.states, STATE * q), sieved.factors[MARGIN])


@splice
def _refine_passed(descriptor, sieved, queries, q, keep):
    sketch, passed = sketch_at(descriptor), int(sieved.counts[PASSED])
    begin, threshold = int(sieved.counts[BEGIN]), _threshold(sieved, queries, q)
    for i in range(passed):
        sieved.passed[i] = sketch.order[sieved.passed[i]]
    refine(sketch, sieved.planes, sieved.factors, sieved.passed, passed, sieved.refined)
    end = begin
    for i in range(passed):
        sieved.ids[end] = sieved.passed[i]
        end += not sieved.refined.uppers[i] < threshold
    return _compute_ids(descriptor, sieved, queries, q, begin, end, keep)


@inline
def _compute_passed(descriptor, sieved, queries, q, keep):
    sketch, passed = sketch_at(descriptor), int(sieved.counts[PASSED])
    begin = int(sieved.counts[BEGIN])
    for i in range(passed):
        sieved.ids[begin + i] = sketch.order[sieved.passed[i]]
    return _compute_ids(descriptor, sieved, queries, q, begin, begin + passed, keep)


@splice
def _compute_ids(descriptor, sieved, queries, q, begin, end, keep):
    """Compute the rows ids[begin:end]; return the new threshold."""
    scan_one(matrix_at(descriptor, 0), LISTED, sieved.ids, begin, end, queries, q)
    sieved.counts[PASSED], sieved.counts[BEGIN] = 0, end if keep else 0
    sieved.counts[DONE] += end - begin
    return _threshold(sieved, queries, q)
