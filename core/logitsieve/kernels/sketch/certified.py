"""Top k with a proof, candidates and bounds by the sieve of sieve.py.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import padded, row_of, widen_row
from logitsieve.kernels.simd.pointers import (
    as_float32,
    as_int8,
    as_int32,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
)
from logitsieve.kernels.sketch.sieve import (
    DONE,
    FORGET,
    KEEP,
    first_groups,
    sieve,
    work_at,
    work_room,
)
from logitsieve.kernels.sketch.sketch import (
    FACTORS,
    MARGIN,
    REFINED_ROOM,
    describe,
    query_room,
    refine,
    refined_at,
    rotated_room,
    sketch_at,
)
from logitsieve.kernels.topk.descriptor import ROWS, admissible, matrix_at
from logitsieve.kernels.topk.gather import fill_logits
from logitsieve.kernels.topk.queries import (
    CHUNK,
    STATE,
    Queries,
    empty_heaps,
    widen_queries,
    write_answers,
)
from logitsieve.kernels.topk.scan import scan_all

AT_ONCE = 64  # queries that share the tiles of the sketch
SCRATCH = 1 << 22  # float64 values that the scratch of several queries may take


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
    groups = first_groups(record, limit)
    room = work_room(record, groups, limit, np.int64(0))
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
            sieve(record, queries, works, room, groups, rotated, count, FORGET)
        for q in range(count):
            counts = work_at(record, shift(works, q * room), groups).counts
            scanned[first + q] = record[ROWS] if groups == 0 else int(counts[DONE])
            write_answers(queries, q, row_of(pointer(logits), first, limit))
    keep_alive(scratch)
    return bad


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
    matrix, vocabulary, groups = matrix_at(record, 0), record[ROWS], first_groups(record, least)
    room = work_room(record, groups, least, vocabulary)
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
    work = work_at(record, place, groups)
    offsets, upper = np.empty(rows + 1, np.int64), np.empty(rows, np.float32)
    offsets[0] = 0
    ids, logits = np.empty(rows * CHUNK, np.int32), np.empty(rows * CHUNK, np.float32)
    bad, one = -1, np.int64(1)
    for row in range(rows):
        here = row_of(pointer(hidden), row, dim)
        queries = Queries(here, wide, states, values, kept, spare, least, False)
        if widen_queries(record, queries, one) >= 0:
            bad, rows = row, 0
            break
        empty_heaps(record, 0, queries, one)
        if groups == 0:
            count, upper[row] = vocabulary, -np.inf
            for i in range(vocabulary):
                work.listed[i] = i
        else:
            sieve(record, queries, place, room, groups, rotated, one, KEEP)
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
    grown = np.empty(2 * least, array.dtype)
    for i in range(used):
        grown[i] = array[i]
    return grown


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
                estimate = np.float64(refined.estimates[i])
                upper = np.float64(refined.uppers[i])
                lowers[first + i] = -_above(upper - 2.0 * estimate, factors[MARGIN])
                uppers[first + i] = _above(upper, factors[MARGIN])
    keep_alive(scratch)
    return bad
