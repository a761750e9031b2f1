"""Top k with a proof: bound every row by the sketch, compute exactly those that may matter.

For each query: bound the rows that are often among the best; compute those with the best estimates,
so that the k-th best exact logit is a threshold; then bound all others, and compute every row whose
bound, refined by the fine codes, reaches it. A row that is dropped has a logit below k others'.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, Q queries answered together.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.cuts import SEEDS, cut_between, cut_of
from logitsieve.kernels.dots import padded, row_of, widen_row
from logitsieve.kernels.gather import fill_logits
from logitsieve.kernels.lanes import (
    LANES,
    append_lanes,
    lanes_not_below,
    load,
    lowest_bit,
    store,
)
from logitsieve.kernels.pointers import (
    as_float32,
    as_int8,
    as_int32,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
)
from logitsieve.kernels.queries import (
    CHUNK,
    NORM,
    STATE,
    Queries,
    empty_heaps,
    widen_queries,
    write_answers,
)
from logitsieve.kernels.record import ROWS, admissible, matrix_at
from logitsieve.kernels.scan import scan_all, scan_one
from logitsieve.kernels.sketch import (
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
    rotated_room,
    sketch_at,
    spread_factors,
)
from logitsieve.types.results import Float32, Int32, Int64

FIRST = 32  # groups that give the threshold, at least
FIRST_ROWS = 8  # rows of theirs for each answer wanted, at least
TILE = 64  # groups whose codes stay in the cache while all queries go through them
AT_ONCE = 64  # queries that share them
SCRATCH = 1 << 22  # float64 values that the scratch of several queries may take

# One query's scratch: codes and factors; what refining finds; estimates and bounds float32 of the
# first groups; rows that passed the coarse bounds; ids of rows to compute, and of those computed.
# `counts`: how many passed, where the ids begin that are not computed yet, how many were computed.
Work = namedtuple("Work", "planes factors refined estimates uppers passed listed counts")
PASSED, BEGIN, DONE = range(3)
COUNTS = 3


@inline
def _first_groups(record, limit):
    """Groups that give the threshold; 0 where so many answers are wanted that all is computed."""
    groups = (record[ROWS] + LANES - 1) // LANES
    wanted = max(FIRST, (FIRST_ROWS * limit + LANES - 1) // LANES)
    return 0 if 2 * FIRST_ROWS * limit > record[ROWS] else min(groups, wanted)


@inline
def _listed_room(limit):
    """Ids that are seeded at most, or what passed."""
    return max(2 * SEEDS * limit, CHUNK) + AT_MOST


@inline
def _room(record, groups, listed):
    """float64 values of scratch for one query's Work with room for `listed` ids."""
    fixed = query_room(record) + FACTORS + REFINED_ROOM + COUNTS
    return fixed + groups * LANES + (AT_MOST + listed + 1) // 2


@inline
def _work(record, scratch, groups):
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


@kernel("(int64, float32[:,::1], int32[:,::1], float32[:,::1], int32[::1], int64, int64)")
def certified_topk(
    address: int,
    hidden: Float32,
    ids: Int32,
    logits: Float32,
    scanned: Int32,
    start: int,
    stop: int,
) -> int:
    """Fill ids and logits [B, K] and scanned [B] for rows start .. stop-1 of hidden [B, D].

    `address` is the sketch's record's. Returns -1, or the first row that is not finite or too
    large.
    """
    record = int64_pointer(address)
    limit, dim = ids.shape[1], hidden.shape[1]
    groups = _first_groups(record, limit)
    room = _room(record, groups, _listed_room(limit))
    each = padded(dim) + STATE + limit + room
    block = max(1, min(stop - start, AT_ONCE, SCRATCH // each))
    scratch = np.empty(block * each + rotated_room(record) + 2 * CHUNK, np.float64)
    wide = pointer(scratch)
    states = shift(wide, block * padded(dim))
    values = shift(states, block * STATE)
    works = shift(values, block * limit)
    rotated = as_float32(shift(works, block * room))
    spare = as_float32(shift(works, block * room + rotated_room(record)))
    bad = -1
    for first in range(start, stop, block):
        count = min(stop - first, block)
        rows, kept = row_of(pointer(hidden), first, dim), row_of(pointer(ids), first, limit)
        queries = Queries(rows, wide, states, values, kept, spare, limit, False)
        bad = widen_queries(record, queries, count)
        if bad >= 0:
            bad += first
            break
        empty_heaps(record, 0, queries, count)
        if groups == 0:
            scan_all(matrix_at(record, 0), queries, count)
        else:
            _sieve(record, queries, works, room, groups, rotated, count, False)
        for q in range(count):
            counts = _work(record, shift(works, q * room), groups).counts
            scanned[first + q] = record[ROWS] if groups == 0 else int(counts[DONE])
            write_answers(queries, q, row_of(pointer(logits), first, limit))
    keep_alive(scratch)
    return bad


@inline
def _sieve(record, queries, works, room, groups, rotated, count, keep):
    """Offer to each query every row that may be among its best.

    With `keep`, `listed` holds all rows that were computed afterwards.
    """
    sketch, dim = sketch_at(record), matrix_at(record, 0).dim
    for q in range(count):
        work, h = _work(record, shift(works, q * room), groups), row_of(queries.hidden, q, dim)
        describe(record, h, queries.states[STATE * q + NORM], rotated, work.planes, work.factors)
        _begin(record, work, queries, q, groups, keep)
    for first in range(groups, sketch.groups, TILE):
        last = min(first + TILE, sketch.groups)
        for q in range(count):
            work = _work(record, shift(works, q * room), groups)
            _go_on(record, work, queries, q, first, last, keep)
    for q in range(count):
        _settle(record, _work(record, shift(works, q * room), groups), queries, q, keep)


@inline
def _begin(record, work, queries, q, groups, keep):
    """Compute the best of the first groups, in two steps; then the others are up to a threshold."""
    sketch, query = sketch_at(record), spread_factors(work.factors)
    size, most = groups * LANES, 2 * SEEDS * queries.limit
    for group in range(0, groups, FOUR):
        a, b, c, e = bound_four(sketch, work.planes, query, group, groups)
        _store_bounds(work, group, a)
        _store_bounds(work, min(group + 1, groups - 1), b)
        _store_bounds(work, min(group + 2, groups - 1), c)
        _store_bounds(work, min(group + 3, groups - 1), e)
    cut, seeds = cut_between(work.estimates, size, SEEDS * queries.limit, most), 0
    for place in range(0, size, LANES):
        mask = _within(sketch, place, lanes_not_below(load(work.estimates, place), cut))
        while mask and seeds < most:
            row = place + lowest_bit(mask)
            mask &= mask - 1
            work.listed[seeds] = sketch.order[row]
            work.uppers[row] = -np.inf
            seeds += 1
    scan_one(matrix_at(record, 0), True, work.listed, 0, seeds, queries, q)
    work.counts[PASSED], work.counts[BEGIN] = 0, seeds if keep else 0
    work.counts[DONE] = seeds
    cut = _cut(work, queries, q)
    for place in range(0, size, LANES):
        passed = int(work.counts[PASSED])
        passed = _note(sketch, work, passed, load(work.uppers, place), cut, place // LANES, groups)
        work.counts[PASSED] = passed
        if passed >= CHUNK:
            cut = _settle(record, work, queries, q, keep)
    _settle(record, work, queries, q, keep)


@inline
def _store_bounds(work, group, found):
    store(work.estimates, group * LANES, found[0])
    store(work.uppers, group * LANES, found[1])


@inline
def _within(sketch, place, mask):
    """The bits of rows below V."""
    if place + LANES > sketch.rows:
        mask &= (1 << (sketch.rows - place)) - 1
    return mask


@inline
def _note(sketch, work, passed, uppers, cut, group, last):
    """Append the rows of a group whose bounds reach `cut` to those that passed; how many those are.

    Groups from `last` on are copies of another, and have none.
    """
    mask = lanes_not_below(uppers, cut)
    if mask != 0 and group < last:
        mask = _within(sketch, group * LANES, mask)
        passed = append_lanes(work.passed, passed, mask, group * LANES)
    return passed


@inline
def _go_on(record, work, queries, q, first, last, keep):
    """Groups first .. last-1: what passes the threshold is noted, and settled a chunk at a time."""
    sketch, query = sketch_at(record), spread_factors(work.factors)
    cut, passed = _cut(work, queries, q), int(work.counts[PASSED])
    for group in range(first, last, FOUR):
        a, b, c, e = bound_four(sketch, work.planes, query, group, last)
        passed = _note(sketch, work, passed, a[1], cut, group, last)
        passed = _note(sketch, work, passed, b[1], cut, group + 1, last)
        passed = _note(sketch, work, passed, c[1], cut, group + 2, last)
        passed = _note(sketch, work, passed, e[1], cut, group + 3, last)
        if passed >= CHUNK:
            work.counts[PASSED] = passed
            cut, passed = _settle(record, work, queries, q, keep), 0
    work.counts[PASSED] = passed


@inline
def _cut(work, queries, q):
    return cut_of(queries, q, shift(queries.states, STATE * q), work.factors[MARGIN])


@inline
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
    scan_one(matrix_at(record, 0), True, work.listed, begin, end, queries, q)
    work.counts[PASSED], work.counts[BEGIN] = 0, end if keep else 0
    work.counts[DONE] += end - begin
    return _cut(work, queries, q)


@kernel("(int64, float32[:,::1], int64)")
def certified_candidates(
    address: int, hidden: Float32, least: int
) -> tuple[int, Int64, Int32, Float32, Float32]:
    """Every row that `certified_topk` computes for `least` answers, with exact logits, as CSR.

    Returns (bad, offsets [B+1], ids, logits, upper [B]): no other logit of a row exceeds its upper,
    the worst of the `least` answers; bad is -1, or the first row of hidden that is not finite or
    too large.
    """
    record = int64_pointer(address)
    rows, dim = hidden.shape
    matrix, vocabulary, groups = matrix_at(record, 0), record[ROWS], _first_groups(record, least)
    room = _room(record, groups, vocabulary + _listed_room(least))
    scratch = np.empty(
        padded(dim) + STATE + 2 * least + room + rotated_room(record) + CHUNK, np.float64
    )
    wide = pointer(scratch)
    states = shift(wide, padded(dim))
    values = shift(states, STATE)
    kept = as_int32(shift(values, least))
    place = shift(values, 2 * least)
    rotated = as_float32(shift(place, room))
    spare = as_float32(shift(place, room + rotated_room(record)))
    work = _work(record, place, groups)
    offsets, upper = np.zeros(rows + 1, np.int64), np.empty(rows, np.float32)
    ids, logits = np.empty(rows * CHUNK, np.int32), np.empty(rows * CHUNK, np.float32)
    bad = -1
    for row in range(rows):
        here = row_of(pointer(hidden), row, dim)
        queries = Queries(here, wide, states, values, kept, spare, least, False)
        if widen_queries(record, queries, 1) >= 0:
            bad, rows = row, 0
            break
        empty_heaps(record, 0, queries, 1)
        if groups == 0:
            count, upper[row] = vocabulary, -np.inf
            for i in range(vocabulary):
                work.listed[i] = i
        else:
            _sieve(record, queries, place, room, groups, rotated, 1, True)
            count, upper[row] = int(work.counts[DONE]), _above(values[0], 0.0)
        begin, end = offsets[row], offsets[row] + count
        offsets[row + 1] = end
        if end > ids.size:
            ids, logits = _grown(ids, begin, end), _grown(logits, begin, end)
        for i in range(count):
            ids[begin + i] = work.listed[i]
        fill_logits(matrix, wide, ids, begin, end, logits)
    keep_alive(scratch)
    return bad, offsets, ids[: offsets[rows]], logits[: offsets[rows]], upper


@inline
def _grown(array, used, least):
    """A copy of array[:used] with room for `least` elements and more."""
    larger_one = np.empty(2 * least, array.dtype)
    larger_one[:used] = array[:used]
    return larger_one


@inline
def _above(bound, margin):
    """A float32 that no logit of such a bound exceeds."""
    return np.float32(bound + margin + 2.0**-22 * abs(bound))


@kernel("(int64, float32[:,::1], float32[::1], float32[::1])")
def certified_bounds(address: int, hidden: Float32, lowers: Float32, uppers: Float32) -> int:
    """Fill lowers and uppers [V], between which every logit of hidden [1, D] lies.

    `address` is the sketch's record's. Returns -1, or 0 for a row that is not finite or too large.
    """
    record = int64_pointer(address)
    dim, sketch, room = hidden.shape[1], sketch_at(record), query_room(record)
    scratch = np.empty(
        padded(dim) + room + FACTORS + rotated_room(record) + REFINED_ROOM + CHUNK, np.float64
    )
    planes = as_int8(shift(pointer(scratch), padded(dim)))
    factors = shift(pointer(scratch), padded(dim) + room)
    rotated = shift(factors, FACTORS)
    place = shift(rotated, rotated_room(record))
    refined, ids = refined_at(place), as_int32(shift(place, REFINED_ROOM))
    norm, bad = np.sqrt(widen_row(pointer(hidden), pointer(scratch), dim)), 0
    if admissible(record, 0, norm):
        bad = -1
        describe(record, pointer(hidden), norm, as_float32(rotated), planes, factors)
        for first in range(0, sketch.rows, CHUNK):
            count = min(CHUNK, sketch.rows - first)
            for i in range(count):
                ids[i] = first + i
            refine(sketch, planes, factors, ids, count, refined)
            for i in range(count):
                estimate, upper = float(refined.estimates[i]), float(refined.uppers[i])
                lowers[first + i] = -_above(upper - 2.0 * estimate, factors[MARGIN])
                uppers[first + i] = _above(upper, factors[MARGIN])
    keep_alive(scratch)
    return bad
