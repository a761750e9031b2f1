"""The sieve: bound every row by the sketch, compute exactly those that may be among the best.

For each query: bound the rows that are often among the best; compute those with the best estimates,
so that the k-th best exact logit is a threshold; then bound all others, and compute every row whose
bound, refined by the fine codes, reaches it. A row that is dropped has a logit below k others'.

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
    REFINED_ROOM,
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
from logitsieve.kernels.sketch.sketch import FACTORS, MARGIN, codes_room, encode_query, sketch_at
from logitsieve.kernels.sketch.thresholds import SEEDS, take_best, threshold_of
from logitsieve.kernels.topk.descriptor import DIM, ROWS, matrix_at
from logitsieve.kernels.topk.queries import CHUNK, NORM, STATE
from logitsieve.kernels.topk.scan import LISTED, scan_one

FIRST = 32  # groups that give the threshold, at least
FIRST_ROWS = 8  # rows of theirs for each answer wanted, at least
TILE = 64  # groups whose codes stay in the cache while all queries go through them

# One query's scratch: codes and factors; what refining finds; estimates and bounds float32 of the
# first groups; rows that passed the coarse bounds; ids of rows to compute, and of those computed.
# `counts`: how many passed, where the ids begin that are not computed yet, how many were computed.
Sieved = namedtuple("Sieved", "planes factors refined estimates uppers passed listed counts")
PASSED, BEGIN, DONE = range(3)
COUNTS = 3

# Whether `listed` holds all rows that were computed afterwards; of one type, as scan.LISTED is.
KEEP, FORGET = np.bool_(True), np.bool_(False)


@inline
def first_groups(descriptor, limit):
    """Groups that give the threshold; 0 where so many answers are wanted that all is computed."""
    groups = (descriptor[ROWS] + LANES - 1) // LANES
    wanted = max(FIRST, (FIRST_ROWS * limit + LANES - 1) // LANES)
    return 0 if 2 * FIRST_ROWS * limit > descriptor[ROWS] else min(groups, wanted)


@inline
def sieved_room(descriptor, groups, limit, kept):
    """float64 values of scratch for one query that lists `kept` ids for good."""
    listed = max(2 * SEEDS * limit, CHUNK) + AT_MOST + kept  # what is seeded at most, or passed
    fixed = codes_room(descriptor) + FACTORS + REFINED_ROOM + COUNTS
    return fixed + groups * LANES + (AT_MOST + listed + 1) // 2


@inline
def sieved_at(descriptor, scratch, groups):
    factors = shift(scratch, codes_room(descriptor))
    refined = shift(factors, FACTORS)
    counts = shift(refined, REFINED_ROOM)
    estimates = as_float32(shift(counts, COUNTS))
    uppers = shift(estimates, groups * LANES)
    passed = as_int32(shift(uppers, groups * LANES))
    listed = shift(passed, AT_MOST)
    return Sieved(
        as_int8(scratch), factors, refined_at(refined), estimates, uppers, passed, listed, counts
    )


@inline
def sieve(descriptor, queries, sieving, room, groups, rotated, count, keep):
    """Offer to each query every row that may be among its best; `sieving` are `room` apart."""
    sketch, first, last = sketch_at(descriptor), np.int64(0), groups
    while first < sketch.groups:
        for q in range(count):
            sieved = sieved_at(descriptor, shift(sieving, q * room), groups)
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
    """Bound the first groups, and compute the rows of theirs with the best estimates."""
    sketch, query = sketch_at(descriptor), coarse_factors(sieved.factors)
    for group in range(0, groups, FOUR):
        bounds = bound_four(sketch, sieved.planes, query, group, groups)
        a, b, c, e = four_from(group, groups)
        _store_bounds(sieved, a, bounds[0])
        _store_bounds(sieved, b, bounds[1])
        _store_bounds(sieved, c, bounds[2])
        _store_bounds(sieved, e, bounds[3])
    rows = min(groups * LANES, sketch.rows)
    seeds = take_best(
        sieved.estimates, sieved.uppers, sketch.order, rows, queries.limit, sieved.listed
    )
    sieved.counts[PASSED], sieved.counts[BEGIN], sieved.counts[DONE] = (
        0,
        seeds if keep else 0,
        seeds,
    )
    scan_one(matrix_at(descriptor, 0), LISTED, sieved.listed, np.int64(0), seeds, queries, q)


@inline
def _store_bounds(sieved, group, bounds):
    store(sieved.estimates, group * LANES, bounds[0])
    store(sieved.uppers, group * LANES, bounds[1])


@splice
def _sieve_tile(descriptor, sieved, queries, q, first, last, groups, keep):
    """Groups first .. last-1: what passes the threshold is noted, and settled a chunk at a time.

    All is settled after the first groups, whose bounds are stored, and after the last.
    """
    sketch, query = sketch_at(descriptor), coarse_factors(sieved.factors)
    threshold, passed = _threshold(sieved, queries, q), int(sieved.counts[PASSED])
    whole = last == groups or last == sketch.groups
    for group in range(first, last, FOUR):
        if first == 0:
            a, b, c, e = _stored_four(sieved, group, last)
        else:
            bounds = bound_four(sketch, sieved.planes, query, group, last)
            a, b, c, e = bounds[0][1], bounds[1][1], bounds[2][1], bounds[3][1]
        passed = append_passed(sketch, sieved.passed, passed, a, threshold, group, last)
        passed = append_passed(sketch, sieved.passed, passed, b, threshold, group + 1, last)
        passed = append_passed(sketch, sieved.passed, passed, c, threshold, group + 2, last)
        passed = append_passed(sketch, sieved.passed, passed, e, threshold, group + 3, last)
        if passed >= CHUNK or (whole and group + FOUR >= last):
            sieved.counts[PASSED] = passed
            threshold, passed = _refine_passed(descriptor, sieved, queries, q, keep), 0
    sieved.counts[PASSED] = passed


@splice
def _sieve_levels(descriptor, sieved, queries, q, first, last, groups, keep):
    """The same through the levels of a sketch: each is read of what has passed the one before.

    Rows wait for the last, so that their codes are there when sixteen are read together.
    """
    sketch, query = sketch_at(descriptor), coarse_factors(sieved.factors)
    levels, queue, queued = query.levels, level_queue_at(sieved.refined.rests), 0
    bases = sieved.refined.biases  # which nothing else needs
    threshold, passed = _threshold(sieved, queries, q), int(sieved.counts[PASSED])
    for four in range(first, last, FOUR):
        sums = sum_four(sketch, sieved.planes, four, last)
        store_bases(sketch, bases, query, four, last, sums)
        for group in range(four, min(four + FOUR, last)):
            at = 2 * LANES * (group - four)
            base = load(bases, at), load(bases, at + LANES)
            twice, upper = first_level(sketch, sieved.planes, levels, base[1], group)
            if group < groups:  # rows that were computed have bounds of -inf
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
    """List the places of the first `count` rows that reach `threshold`; the number that passed."""
    _, upper = last_level(sketch, sieved.planes, levels, queue, count)
    mask = first_lanes(lanes_not_below(upper, threshold), count)
    while mask:
        sieved.passed[passed] = queue.places[lowest_bit(mask)]
        mask &= mask - 1
        passed += 1
    return passed


@inline
def store_bases(sketch, bases, query, group, end, sums):
    """Write sums of four groups without their tails, and these with the error of their codes."""
    places = four_from(group, end)
    for i in range(FOUR):
        base = base_of(sketch, query, places[i], sums[i])
        store(bases, 2 * LANES * i, base[0])
        store(bases, 2 * LANES * i + LANES, base[1])


@inline
def _stored_four(sieved, group, end):
    """The bounds of four of the first groups; groups from `end` on are the last before it again."""
    a, b, c, e = four_from(group, end)
    return (
        load(sieved.uppers, a * LANES),
        load(sieved.uppers, b * LANES),
        load(sieved.uppers, c * LANES),
        load(sieved.uppers, e * LANES),
    )


@inline
def append_passed(sketch, listed, passed, uppers, threshold, group, last):
    """List the places of a group whose bounds reach `threshold`; the number that passed by then.

    Groups from `last` on are copies of another, and have none.
    """
    mask = lanes_not_below(uppers, threshold)
    if mask != 0 and group < last:
        mask = first_lanes(mask, sketch.rows - group * LANES)
        passed = append_lanes(listed, passed, mask, group * LANES)
    return passed


@inline
def _threshold(sieved, queries, q):
    return threshold_of(queries, q, shift(queries.states, STATE * q), sieved.factors[MARGIN])


@splice
def _refine_passed(descriptor, sieved, queries, q, keep):
    """Refine what passed, and compute what reaches the threshold still; the threshold then."""
    sketch, passed = sketch_at(descriptor), int(sieved.counts[PASSED])
    begin, threshold = int(sieved.counts[BEGIN]), _threshold(sieved, queries, q)
    for i in range(passed):
        sieved.passed[i] = sketch.order[sieved.passed[i]]
    refine(sketch, sieved.planes, sieved.factors, sieved.passed, passed, sieved.refined)
    end = begin
    for i in range(passed):
        sieved.listed[end] = sieved.passed[i]
        end += not sieved.refined.uppers[i] < threshold
    return _compute_listed(descriptor, sieved, queries, q, begin, end, keep)


@inline
def _compute_passed(descriptor, sieved, queries, q, keep):
    """Compute what passed all levels; the threshold then."""
    sketch, passed = sketch_at(descriptor), int(sieved.counts[PASSED])
    begin = int(sieved.counts[BEGIN])
    for i in range(passed):
        sieved.listed[begin + i] = sketch.order[sieved.passed[i]]
    return _compute_listed(descriptor, sieved, queries, q, begin, begin + passed, keep)


@splice
def _compute_listed(descriptor, sieved, queries, q, begin, end, keep):
    """Compute the rows listed[begin:end]; the threshold then."""
    scan_one(matrix_at(descriptor, 0), LISTED, sieved.listed, begin, end, queries, q)
    sieved.counts[PASSED], sieved.counts[BEGIN] = 0, end if keep else 0
    sieved.counts[DONE] += end - begin
    return _threshold(sieved, queries, q)
