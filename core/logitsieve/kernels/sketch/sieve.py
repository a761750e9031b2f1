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
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.lanes import LANES, load, store
from logitsieve.kernels.simd.masks import append_lanes, first_lanes, lanes_not_below
from logitsieve.kernels.simd.pointers import as_float32, as_int8, as_int32, shift
from logitsieve.kernels.sketch.sketch import (
    AT_MOST,
    FACTORS,
    FOUR,
    MARGIN,
    REFINED_ROOM,
    bound_four,
    describe,
    query_room,
    refine,
    refined_at,
    sketch_at,
    spread_factors,
)
from logitsieve.kernels.sketch.thresholds import SEEDS, cut_of, take_best
from logitsieve.kernels.topk.descriptor import DIM, ROWS, matrix_at
from logitsieve.kernels.topk.queries import CHUNK, NORM, STATE
from logitsieve.kernels.topk.scan import LISTED, scan_one

FIRST = 32  # groups that give the threshold, at least
FIRST_ROWS = 8  # rows of theirs for each answer wanted, at least
TILE = 64  # groups whose codes stay in the cache while all queries go through them

# One query's scratch: codes and factors; what refining finds; estimates and bounds float32 of the
# first groups; rows that passed the coarse bounds; ids of rows to compute, and of those computed.
# `counts`: how many passed, where the ids begin that are not computed yet, how many were computed.
Work = namedtuple("Work", "planes factors refined estimates uppers passed listed counts")
PASSED, BEGIN, DONE = range(3)
COUNTS = 3

# Whether `listed` holds all rows that were computed afterwards; of one type, as scan.LISTED is.
KEEP, FORGET = np.bool_(True), np.bool_(False)


@inline
def first_groups(record, limit):
    """Groups that give the threshold; 0 where so many answers are wanted that all is computed."""
    groups = (record[ROWS] + LANES - 1) // LANES
    wanted = max(FIRST, (FIRST_ROWS * limit + LANES - 1) // LANES)
    return 0 if 2 * FIRST_ROWS * limit > record[ROWS] else min(groups, wanted)


@inline
def work_room(record, groups, limit, kept):
    """float64 values of scratch for one query's Work that lists `kept` ids for good."""
    listed = max(2 * SEEDS * limit, CHUNK) + AT_MOST + kept  # what is seeded at most, or passed
    fixed = query_room(record) + FACTORS + REFINED_ROOM + COUNTS
    return fixed + groups * LANES + (AT_MOST + listed + 1) // 2


@inline
def work_at(record, scratch, groups):
    """The Work in such scratch."""
    factors = shift(scratch, query_room(record))
    refined = shift(factors, FACTORS)
    counts = shift(refined, REFINED_ROOM)
    estimates = as_float32(shift(counts, COUNTS))
    uppers = shift(estimates, groups * LANES)
    passed = as_int32(shift(uppers, groups * LANES))
    listed = shift(passed, AT_MOST)
    return Work(
        as_int8(scratch), factors, refined_at(refined), estimates, uppers, passed, listed, counts
    )


@inline
def sieve(record, queries, works, room, groups, rotated, count, keep):
    """Offer to each query every row that may be among its best; `works` are `room` apart."""
    sketch, first, last = sketch_at(record), np.int64(0), groups
    while first < sketch.groups:
        for q in range(count):
            work = work_at(record, shift(works, q * room), groups)
            if first == 0:
                h, norm = row_of(queries.hidden, q, record[DIM]), queries.states[STATE * q + NORM]
                describe(record, h, norm, rotated, work.planes, work.factors)
                _begin(record, work, queries, q, groups, keep)
            _go_on(record, work, queries, q, first, last, groups, keep)
        first, last = last, min(last + TILE, sketch.groups)


@splice
def _begin(record, work, queries, q, groups, keep):
    """Bound the first groups, and compute the rows of theirs with the best estimates."""
    sketch, query = sketch_at(record), spread_factors(work.factors)
    for group in range(0, groups, FOUR):
        a, b, c, e = bound_four(sketch, work.planes, query, group, groups)
        _store_bounds(work, group, a)
        _store_bounds(work, min(group + 1, groups - 1), b)
        _store_bounds(work, min(group + 2, groups - 1), c)
        _store_bounds(work, min(group + 3, groups - 1), e)
    rows = min(groups * LANES, sketch.rows)
    seeds = take_best(work.estimates, work.uppers, sketch.order, rows, queries.limit, work.listed)
    work.counts[PASSED], work.counts[BEGIN], work.counts[DONE] = 0, seeds if keep else 0, seeds
    scan_one(matrix_at(record, 0), LISTED, work.listed, np.int64(0), seeds, queries, q)


@inline
def _store_bounds(work, group, found):
    store(work.estimates, group * LANES, found[0])
    store(work.uppers, group * LANES, found[1])


@splice
def _go_on(record, work, queries, q, first, last, groups, keep):
    """Groups first .. last-1: what passes the threshold is noted, and settled a chunk at a time.

    All is settled after the first groups, whose bounds are stored, and after the last.
    """
    sketch, query = sketch_at(record), spread_factors(work.factors)
    cut, passed = _cut(work, queries, q), int(work.counts[PASSED])
    whole = last == groups or last == sketch.groups
    for group in range(first, last, FOUR):
        if first == 0:
            a, b, c, e = _stored_four(work, group, last)
        else:
            found = bound_four(sketch, work.planes, query, group, last)
            a, b, c, e = found[0][1], found[1][1], found[2][1], found[3][1]
        passed = _note(sketch, work, passed, a, cut, group, last)
        passed = _note(sketch, work, passed, b, cut, group + 1, last)
        passed = _note(sketch, work, passed, c, cut, group + 2, last)
        passed = _note(sketch, work, passed, e, cut, group + 3, last)
        if passed >= CHUNK or (whole and group + FOUR >= last):
            work.counts[PASSED] = passed
            cut, passed = _settle(record, work, queries, q, keep), 0
    work.counts[PASSED] = passed


@inline
def _stored_four(work, group, end):
    """The bounds of four of the first groups; groups from `end` on are the last before it again."""
    return (
        load(work.uppers, group * LANES),
        load(work.uppers, min(group + 1, end - 1) * LANES),
        load(work.uppers, min(group + 2, end - 1) * LANES),
        load(work.uppers, min(group + 3, end - 1) * LANES),
    )


@inline
def _note(sketch, work, passed, uppers, cut, group, last):
    """Append the rows of a group whose bounds reach `cut` to those that passed; how many those are.

    Groups from `last` on are copies of another, and have none.
    """
    mask = lanes_not_below(uppers, cut)
    if mask != 0 and group < last:
        mask = first_lanes(mask, sketch.rows - group * LANES)
        passed = append_lanes(work.passed, passed, mask, group * LANES)
    return passed


@inline
def _cut(work, queries, q):
    return cut_of(queries, q, shift(queries.states, STATE * q), work.factors[MARGIN])


@splice
def _settle(record, work, queries, q, keep):
    """Refine what passed, and compute what reaches the threshold still; the threshold then."""
    sketch, passed = sketch_at(record), int(work.counts[PASSED])
    begin, cut = int(work.counts[BEGIN]), _cut(work, queries, q)
    for i in range(passed):
        work.passed[i] = sketch.order[work.passed[i]]
    refine(sketch, work.planes, work.factors, work.passed, passed, work.refined)
    end = begin
    for i in range(passed):
        work.listed[end] = work.passed[i]
        end += not work.refined.uppers[i] < cut
    scan_one(matrix_at(record, 0), LISTED, work.listed, begin, end, queries, q)
    work.counts[PASSED], work.counts[BEGIN] = 0, end if keep else 0
    work.counts[DONE] += end - begin
    return _cut(work, queries, q)
