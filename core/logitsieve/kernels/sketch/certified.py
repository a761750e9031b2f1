"""Top k with a proof, candidates and bounds by the sieve of sieve.py.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.pointers import (
    as_float32,
    as_int8,
    as_int32,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
)
from logitsieve.kernels.sketch.bounds import REFINED_ROOM, refine_places, refined_at
from logitsieve.kernels.sketch.sieve import (
    DONE,
    FORGET,
    KEEP,
    first_groups,
    sieve,
    sieved_at,
    sieved_room,
)
from logitsieve.kernels.sketch.sketch import (
    FACTORS,
    MARGIN,
    codes_room,
    encode_query,
    rotated_room,
    sketch_at,
)
from logitsieve.kernels.sketch.thresholds import SPARE
from logitsieve.kernels.topk.descriptor import ROWS, fill_logits, matrix_at, widen_hidden
from logitsieve.kernels.topk.queries import (
    CHUNK,
    LOGITS,
    at_once,
    empty_heaps,
    queries_at,
    query_room,
    widen_queries,
    write_answers,
)
from logitsieve.kernels.topk.scan import scan_all


@kernel("(int64, float32[:,::1], int32[:,::1], float32[:,::1], int32[::1], int64, int64)")
def certified_topk(address, hidden, ids, logits, scanned, start, stop):
    """Fill ids and logits [B, K] and scanned [B] for rows start .. stop-1 of hidden [B, D].

    `address` is that of the sketch's descriptor. Returns 0, or -1 - r where row r
    is not finite or too large.
    """
    descriptor = int64_pointer(address)
    limit, dim = ids.shape[1], hidden.shape[1]
    groups = first_groups(descriptor, limit)
    room = sieved_room(descriptor, groups, limit, np.int64(0))
    each, status = query_room(dim, limit) + room, 0
    block = at_once(stop - start, each)
    scratch = np.empty(block * each + LOGITS + rotated_room(descriptor), np.float64)
    sieving = shift(pointer(scratch), block * query_room(dim, limit) + LOGITS)
    rotated = as_float32(shift(sieving, block * room))
    for first in range(start, stop, block):
        count = min(stop - first, block)
        rows, kept = row_of(pointer(hidden), first, dim), row_of(pointer(ids), first, limit)
        queries = queries_at(pointer(scratch), block, rows, kept, dim, limit, False)
        bad = widen_queries(descriptor, queries, count)
        if bad >= 0:
            status = -1 - first - bad
            break
        empty_heaps(descriptor, 0, queries, count)
        if groups == 0:
            scan_all(matrix_at(descriptor, 0), queries, count)
        else:
            sieve(descriptor, queries, sieving, room, groups, rotated, count, FORGET)
        for q in range(count):
            counts = sieved_at(descriptor, shift(sieving, q * room), groups).counts
            scanned[first + q] = descriptor[ROWS] if groups == 0 else int(counts[DONE])
            write_answers(queries, q, row_of(pointer(logits), first, limit))
    keep_alive(scratch)
    return status


@kernel("(int64, float32[:,::1], int64)")
def certified_candidates(address, hidden, least):
    """Every row that `certified_topk` computes for `least` answers, with exact logits, as CSR.

    Returns (bad, offsets [B+1], ids, logits, upper [B]): no other logit of a row exceeds its upper,
    the worst of the `least` answers; bad is -1, or the first row of hidden that is not finite or
    too large.
    """
    descriptor = int64_pointer(address)
    rows, dim = hidden.shape
    matrix, vocabulary, groups = (
        matrix_at(descriptor, 0),
        descriptor[ROWS],
        first_groups(descriptor, least),
    )
    room = sieved_room(descriptor, groups, least, vocabulary)
    size = query_room(dim, least) + LOGITS + room + rotated_room(descriptor)
    scratch, best = np.empty(size, np.float64), np.empty(least, np.int32)
    place = shift(pointer(scratch), query_room(dim, least) + LOGITS)
    rotated = as_float32(shift(place, room))
    sieved = sieved_at(descriptor, place, groups)
    offsets, upper = np.empty(rows + 1, np.int64), np.empty(rows, np.float32)
    offsets[0] = 0
    ids, logits = np.empty(rows * CHUNK, np.int32), np.empty(rows * CHUNK, np.float32)
    bad, one = -1, np.int64(1)
    for row in range(rows):
        h = row_of(pointer(hidden), row, dim)
        queries = queries_at(pointer(scratch), one, h, pointer(best), dim, least, False)
        if widen_queries(descriptor, queries, one) >= 0:
            bad, rows = row, 0
            break
        empty_heaps(descriptor, 0, queries, one)
        if groups == 0:
            count, upper[row] = vocabulary, -np.inf
            for i in range(vocabulary):
                sieved.listed[i] = i
        else:
            sieve(descriptor, queries, place, room, groups, rotated, one, KEEP)
            count, upper[row] = int(sieved.counts[DONE]), _above(queries.values[0], 0.0)
        begin, end = offsets[row], offsets[row] + count
        offsets[row + 1] = end
        if end > ids.size:
            ids, logits = _grown(ids, begin, end), _grown(logits, begin, end)
        for i in range(count):
            ids[begin + i] = sieved.listed[i]
        fill_logits(matrix, queries.wide, ids, begin, end, logits)
    keep_alive(scratch)
    keep_alive(best)
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
    return np.float32(bound + margin + SPARE * abs(bound))


@kernel("(int64, float32[:,::1], float32[::1], float32[::1])")
def certified_bounds(address, hidden, lowers, uppers):
    """Fill lowers and uppers [V], between which every logit of hidden [1, D] lies.

    `address` is that of the sketch's descriptor. Returns -1, or 0 for a row that is not finite or
    too large.
    """
    descriptor = int64_pointer(address)
    dim, sketch, room = hidden.shape[1], sketch_at(descriptor), codes_room(descriptor)
    scratch = np.empty(
        padded(dim) + room + FACTORS + rotated_room(descriptor) + REFINED_ROOM + CHUNK, np.float64
    )
    planes = as_int8(shift(pointer(scratch), padded(dim)))
    factors = shift(pointer(scratch), padded(dim) + room)
    rotated = shift(factors, FACTORS)
    place = shift(rotated, rotated_room(descriptor))
    refined, ids = refined_at(place), as_int32(shift(place, REFINED_ROOM))
    places = shift(ids, CHUNK)
    norm, bad = widen_hidden(descriptor, pointer(hidden), pointer(scratch)), 0
    if norm >= 0:
        bad = -1
        encode_query(descriptor, pointer(hidden), norm, as_float32(rotated), planes, factors)
        for first in range(0, sketch.rows, CHUNK):
            count = min(CHUNK, sketch.rows - first)
            for i in range(count):
                places[i] = first + i
            refine_places(sketch, planes, factors, places, count, ids, refined)
            for i in range(count):
                estimate = np.float64(refined.estimates[i])
                upper = np.float64(refined.uppers[i])
                lowers[ids[i]] = -_above(upper - 2.0 * estimate, factors[MARGIN])
                uppers[ids[i]] = _above(upper, factors[MARGIN])
    keep_alive(scratch)
    return bad
