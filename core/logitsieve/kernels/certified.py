"""Top k with a proof: bound every row by the sketch, compute exactly those that may matter.

For each query: bound all rows by the first stage; compute the rows whose estimates are best, so
that the k-th best exact logit so far is a threshold; then compute every row whose bound, refined
by the second stage, reaches it. A row that is dropped has a logit below k others'.

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
    larger,
    largest_lane,
    load,
    lowest_bit,
    splat32,
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
    BLOCK,
    FACTORS,
    MARGIN,
    bound_groups,
    describe,
    estimate_of,
    query_room,
    refine,
    rotated_room,
    sketch_at,
)
from logitsieve.types.results import Float32, Int32, Int64

PASSED = CHUNK + LANES  # ids that passed the first stage, until they are refined
TILE = 4 * BLOCK  # groups whose codes stay in the L2 cache while all queries go through them
AT_ONCE = 16  # queries that share them
SCRATCH = 1 << 24  # float32 values that the bounds of several queries may take

# One query's scratch: bounds float32 [V padded to whole blocks], the best estimates of each block's
# lanes float32, codes, factors, ids that passed the first stage, and ids of rows to compute.
Work = namedtuple("Work", "uppers maxima planes factors passed listed")


@inline
def _blocks(record):
    return (record[ROWS] + BLOCK * LANES - 1) // (BLOCK * LANES)


@inline
def _listed_room(limit):
    """Ids that are seeded at most, or survivors of two chunks."""
    return max(2 * SEEDS * limit, CHUNK) + PASSED


@inline
def _room(record, room):
    """float64 values of scratch for one query's Work with `room` ids."""
    floats = _blocks(record) * (BLOCK + 1) * LANES
    ids = PASSED + room
    return (floats + 1) // 2 + query_room(record) + FACTORS + (ids + 1) // 2


@inline
def _work(record, scratch, room):
    blocks = _blocks(record)
    uppers = as_float32(scratch)
    maxima = shift(uppers, blocks * BLOCK * LANES)
    rest = shift(scratch, (blocks * (BLOCK + 1) * LANES + 1) // 2)
    planes = as_int8(rest)
    factors = shift(rest, query_room(record))
    passed = as_int32(shift(factors, FACTORS))
    return Work(uppers, maxima, planes, factors, passed, shift(passed, PASSED))


@inline
def _too_many(record, limit):
    """Whether so many answers are wanted that the sketch would only be in the way."""
    return 3 * SEEDS * limit > _blocks(record) * LANES


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
    room = _room(record, _listed_room(limit))
    block = max(1, min(stop - start, AT_ONCE, SCRATCH // (2 * room)))
    each = padded(dim) + STATE + limit + room
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
        if _too_many(record, limit):
            scan_all(matrix_at(record, 0), queries, count)
        else:
            _bound_all(record, queries, works, room, rotated, count)
        for q in range(count):
            if _too_many(record, limit):
                scanned[first + q] = record[ROWS]
            else:
                work = _work(record, shift(works, q * room), room)
                scanned[first + q] = _compute(record, work, queries, q, False)
            write_answers(queries, q, row_of(pointer(logits), first, limit))
    keep_alive(scratch)
    return bad


@inline
def _bound_all(record, queries, works, room, rotated, count):
    """The first stage for every query, a tile of rows at a time."""
    sketch, dim = sketch_at(record), matrix_at(record, 0).dim
    groups = (sketch.rows + LANES - 1) // LANES
    for q in range(count):
        work = _work(record, shift(works, q * room), room)
        h, norm = row_of(queries.hidden, q, dim), queries.states[STATE * q + NORM]
        describe(record, h, norm, rotated, work.planes, work.factors)
    for first in range(0, groups, TILE):
        last = min(first + TILE, groups)
        for q in range(count):
            work = _work(record, shift(works, q * room), room)
            bound_groups(sketch, work.planes, work.factors, first, last, work.uppers, work.maxima)
    for q in range(count):
        uppers = _work(record, shift(works, q * room), room).uppers
        for row in range(sketch.rows, _blocks(record) * BLOCK * LANES):
            uppers[row] = -np.inf


@inline
def _compute(record, work, queries, q, keep):
    """Offer to query q every row that may be among its best; how many rows were computed.

    With `keep`, `work.listed` holds them all afterwards, and `work.uppers` the bounds of the
    others, -inf where a row was computed.
    """
    matrix, sketch, listed = matrix_at(record, 0), sketch_at(record), work.listed
    state, margin = shift(queries.states, STATE * q), work.factors[MARGIN]
    done = _seed(record, work, queries.limit)
    scan_one(matrix, True, listed, 0, done, queries, q)
    begin = done if keep else 0
    end, passed, cut = begin, 0, cut_of(queries, q, state, margin)
    for i in range(0, sketch.rows, LANES):
        mask = lanes_not_below(load(work.uppers, i), cut)
        passed = append_lanes(work.passed, passed, mask, i)
        if passed >= CHUNK or i + LANES >= sketch.rows:
            end, passed = _refine_all(sketch, work, passed, cut, end, keep), 0
        if end - begin >= CHUNK:
            scan_one(matrix, True, listed, begin, end, queries, q)
            done += end - begin
            begin = end if keep else 0
            end, cut = begin, cut_of(queries, q, state, margin)
    scan_one(matrix, True, listed, begin, end, queries, q)
    return done + end - begin


@inline
def _refine_all(sketch, work, passed, cut, end, keep):
    """List from `end` on those of the rows passed whose refined bound reaches `cut`; the end."""
    for i in range(passed):
        row = work.passed[i]
        estimate, slack = refine(sketch, work.planes, work.factors, row)
        drop = estimate + slack < cut
        work.listed[end] = row
        end += not drop
        if keep:
            work.uppers[row] = np.float32(estimate + slack) if drop else np.float32(-np.inf)
    return end


@inline
def _seed(record, work, limit):
    """List the rows with the best estimates, at least K unless estimates tie; how many.

    Each lane of a block has one: fewer of the best are found, but without a list of all.
    """
    sketch, size = sketch_at(record), _blocks(record) * LANES
    most, wanted = 2 * SEEDS * limit, SEEDS * limit
    cut, count = cut_between(work.maxima, size, wanted, most), 0
    for i in range(0, size, LANES):
        mask = lanes_not_below(load(work.maxima, i), cut)
        while mask and count < most:
            first = i * BLOCK + lowest_bit(mask)
            mask &= mask - 1
            row = _best_of_lane(sketch, work, first)
            if row >= 0:
                work.listed[count] = row
                work.uppers[row] = -np.inf
                count += 1
    return count


@inline
def _best_of_lane(sketch, work, first):
    """The row with the best estimate of first, first + 16, ..., a lane of a block; -1 if none."""
    best, found = -np.inf, -1
    for row in range(first, min(first + BLOCK * LANES, sketch.rows), LANES):
        estimate = estimate_of(sketch, work.factors, row, work.uppers[row])
        if estimate > best:
            best, found = estimate, row
    return found


@kernel("(int64, float32[:,::1], int64)")
def certified_candidates(
    address: int, hidden: Float32, least: int
) -> tuple[int, Int64, Int32, Float32, Float32]:
    """Every row that `certified_topk` computes for `least` answers, with exact logits, as CSR.

    Returns (bad, offsets [B+1], ids, logits, upper [B]): no other logit of a row exceeds its upper;
    bad is -1, or the first row of hidden that is not finite or too large.
    """
    record = int64_pointer(address)
    rows, dim = hidden.shape
    matrix, vocabulary = matrix_at(record, 0), record[ROWS]
    room = _room(record, vocabulary + _listed_room(least))
    scratch = np.empty(
        padded(dim) + STATE + 2 * least + room + rotated_room(record) + CHUNK, np.float64
    )
    wide = pointer(scratch)
    states = shift(wide, padded(dim))
    values = shift(states, STATE)
    kept = as_int32(shift(values, least))
    work_place = shift(values, 2 * least)
    rotated = as_float32(shift(work_place, room))
    spare = as_float32(shift(work_place, room + rotated_room(record)))
    work = _work(record, work_place, room)
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
        if _too_many(record, least):
            count, upper[row] = vocabulary, -np.inf
            for i in range(vocabulary):
                work.listed[i] = i
        else:
            _bound_all(record, queries, work_place, room, rotated, 1)
            count = _compute(record, work, queries, 0, True)
            upper[row] = _above(_largest(work.uppers, _blocks(record)), work.factors[MARGIN])
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
def _largest(uppers, blocks):
    best = splat32(np.float32(-np.inf))
    for i in range(0, blocks * BLOCK * LANES, LANES):
        best = larger(best, load(uppers, i))
    return largest_lane(best)


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
    dim, sketch = hidden.shape[1], sketch_at(record)
    scratch = np.empty(
        padded(dim) + query_room(record) + FACTORS + rotated_room(record), np.float64
    )
    planes = as_int8(shift(pointer(scratch), padded(dim)))
    factors = shift(pointer(scratch), padded(dim) + query_room(record))
    rotated = as_float32(shift(factors, FACTORS))
    norm, bad = np.sqrt(widen_row(pointer(hidden), pointer(scratch), dim)), 0
    if admissible(record, 0, norm):
        bad = -1
        describe(record, pointer(hidden), norm, rotated, planes, factors)
        for row in range(sketch.rows):
            estimate, slack = refine(sketch, planes, factors, row)
            lowers[row] = -_above(slack - estimate, factors[MARGIN])
            uppers[row] = _above(estimate + slack, factors[MARGIN])
    keep_alive(scratch)
    return bad
