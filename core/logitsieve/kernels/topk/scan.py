"""Top k of rows of a matrix: float32 dots, or dots of codes, choose rows, and `dot64` decides.

These dots are within `slack` of exact logits. So a row more than slack below the worst of k exact
logits, or more than twice slack below the k-th best dot, cannot be among the k best. All others are
evaluated by `dot64`: the answer does not depend on order or grouping.

All dots of a chunk are computed before any decision, which would stall the dots behind it.
"""

from math import exp

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.rows.functions import (
    CODED,
    CODED_DOTS,
    CODED_FEW,
    DOTS,
    F32,
    call_coded_dots,
    call_dots,
    call_few,
)
from logitsieve.kernels.rows.products import codes_size
from logitsieve.kernels.simd.dots import few_dots, four_from, four_of, pad_lanes, padded, row_of
from logitsieve.kernels.simd.exponential import sum_of_exponentials
from logitsieve.kernels.simd.lanes import (
    AVX512,
    LANES,
    cpu_has,
    larger,
    largest_lane,
    largest_of,
    load,
    prefetch,
    sixteen_floats,
    splat32,
)
from logitsieve.kernels.simd.masks import lanes_below, lanes_not_below, lowest_bit
from logitsieve.kernels.simd.pointers import CACHE_LINE, keep_alive, pointer, shift
from logitsieve.kernels.topk.allowed import (
    allowed_of,
    any_allowed,
    forbid,
    forbid_listed,
    is_allowed,
    pick_allowed,
)
from logitsieve.kernels.topk.descriptor import as_floats, exact_logit, shared_rows, tile_size
from logitsieve.kernels.topk.heap import better, contains, offer
from logitsieve.kernels.topk.queries import (
    CHUNK,
    MOST,
    QUERIES_AT_ONCE,
    SIZE,
    SLACK,
    STATE,
    SUMMED,
    THRESHOLD,
    TOTAL,
    VARIANCE,
    codes_of,
)

# Whether rows are named by ids. Numba compiles a function for each literal, but not for each numpy
# scalar; routing passes the literal False, which saves a twentieth.
LISTED, UNLISTED = np.bool_(True), np.bool_(False)

# Relative rounding of a logit when its bias is added; rounding keeps order.
ROUNDING32, ROUNDING64 = 2.0**-23, 2.0**-50
# Only the beginnings of listed rows are prefetched; the hardware prefetches the rest.
ROWS_AHEAD, ROW_BEGINNING = 4, 256  # rows, bytes
ROWS_A_CALL = 16  # rows multiplied with the codes of a few queries
ALONE_CHUNK = 4 * CHUNK  # rows for a single query, so that each of its four streams is long
ONE = np.int64(1)
# More queries than this decode rows; fewer multiply codes. Only CPUs of Intel with AVX-512 multiply
# more float32 than int16 at once.
FEW_CODED = 8 if AVX512 and not cpu_has("sse4a") else QUERIES_AT_ONCE
FEW_COSTLY = 8  # measured on Zen 1
# Up to this many queries are multiplied with four rows one at a time. With AVX2, two queries and
# two rows at once need too many registers, and took longer than three queries.
ALONE_CODED = 1 if AVX512 else 2
MAX_RANKED = 64  # for larger k the k-th best float32 logit is not looked for


@inline
def decide(matrix, queries, q, row):
    """Offer a row to query q; return its exact logit."""
    value = exact_logit(matrix, row_of(queries.wide, q, padded(matrix.dim)), row)
    state, limit = shift(queries.states, STATE * q), queries.limit
    values, kept = shift(queries.values, q * limit), shift(queries.kept, q * limit)
    size = int(state[SIZE])
    if size == limit and not better(value, row, values[0], kept[0]):
        return value
    if queries.distinct and contains(kept, size, row):
        return value
    size = offer(values, kept, size, limit, value, row)
    state[SIZE] = size
    if size == limit:
        state[THRESHOLD] = values[0] - state[SLACK] - ROUNDING64 * abs(values[0])
    return value


@inline
def decide_above(matrix, listed, ids, first, count, logits, queries, q):
    state, own = shift(queries.states, STATE * q), allowed_of(queries.allowed, q)
    floor = -np.inf
    if int(state[SIZE]) == 0 and queries.limit <= min(count, MAX_RANKED):
        ranked = float(_ranked(logits, count, queries.limit))
        if ranked > -np.inf and state[SLACK] < np.inf:
            floor = ranked - 2.0 * state[SLACK] - ROUNDING32 * abs(ranked)
    for i in range(0, count, LANES):
        mask = lanes_not_below(load(logits, i), np.float32(max(floor, state[THRESHOLD])))
        while mask:
            place = first + i + lowest_bit(mask)
            mask &= mask - 1
            row = int(ids[place]) if listed else place
            if place < first + count and is_allowed(own, row):
                value = decide(matrix, queries, q, row)
                if listed and state[SUMMED] != 0.0:
                    _correct_sum(value, float(logits[place - first]), state)


@inline
def _add_to_sum(logits, count, state):
    """Add e^{scale logit} of listed rows, from float32 logits in whole lanes."""
    largest, scale = float(largest_of(logits, count)), state[SUMMED]
    if largest > state[MOST]:
        factor = exp(scale * (state[MOST] - largest))
        state[TOTAL], state[VARIANCE] = state[TOTAL] * factor, state[VARIANCE] * factor
        state[MOST] = largest
    if state[MOST] > -np.inf:
        most = np.float32(scale * state[MOST])
        total = sum_of_exponentials(logits, count, np.float32(scale), most)
        state[TOTAL] += total * exp(float(most) - scale * state[MOST])


@inline
def _correct_sum(value, added, state):
    """Replace the logit that was added by the exact one: from codes it is off by some 1e-3."""
    scale, most = state[SUMMED], state[MOST]
    total = state[TOTAL] + exp(scale * (value - most)) - exp(scale * (added - most))
    state[TOTAL] = max(0.0, total)


@inline
def _ranked(logits, count, rank):
    value = np.float32(np.inf)
    for _ in range(rank):
        best = splat32(np.float32(-np.inf))
        for i in range(0, count, LANES):
            best = larger(best, lanes_below(load(logits, i), value))
        value = largest_lane(best)
    return value


@inline
def _four_rows(listed, ids, i, last, delta):
    i, j, k, m = four_from(i, last, delta)
    if listed:
        return np.int64(ids[i]), np.int64(ids[j]), np.int64(ids[k]), np.int64(ids[m])
    return i, j, k, m


@inline
def prefetch_beginnings(matrix, ids, begin, end):
    for i in range(begin, end):
        row = np.int64(ids[i])
        prefetch(matrix.bias, row)
        for place in range(0, min(matrix.row_bytes, ROW_BEGINNING), CACHE_LINE):
            prefetch(matrix.stored, row * matrix.row_bytes + place)


@inline
def _fill_dots(matrix, r0, r1, r2, r3, queries, q0, q1, q2, q3, count, sums):
    dim, hidden = matrix.dim, queries.hidden
    i, j, k, m = r0 * dim, r1 * dim, r2 * dim, r3 * dim
    h0, h1, h2, h3 = q0 * dim, q1 * dim, q2 * dim, q3 * dim
    if matrix.kind == F32:
        few_dots(matrix.weight, i, j, k, m, hidden, h0, h1, h2, h3, count, dim, sums)
    elif matrix.kind < CODED:
        call_dots(
            matrix.functions[DOTS], matrix.stored, i, j, k, m, hidden, h0, h1, h2, h3, count, dim,
            sums,
        )  # fmt: skip
    else:
        for place in range(count):
            codes, own = codes_of(queries, q1 if place else q0, dim), shift(sums, 4 * place)
            call_coded_dots(
                matrix.functions[CODED_DOTS], matrix.stored, i, j, k, m, codes, dim, own
            )


@inline
def _coded_few(matrix, first, rows, queries, q0, q1, q2, q3, count, logits):
    each = 2 * codes_size(matrix.dim)
    call_few(
        matrix.functions[CODED_FEW], shift(matrix.stored, first * matrix.row_bytes), rows,
        shift(matrix.bias, first), codes_of(queries, q0, matrix.dim), (q1 - q0) * each,
        (q2 - q0) * each, (q3 - q0) * each, count, matrix.dim, logits, CHUNK,
    )  # fmt: skip


@inline
def _steps(listed, first, last):
    fours = (last - first + 3) // 4
    return (fours, 4, 1) if listed else (fours, 1, fours)


@inline
def _store_biased(matrix, r0, r1, r2, r3, dots, logits, delta):
    logits[0] = dots[0] + matrix.bias[r0]
    logits[delta] = dots[1] + matrix.bias[r1]
    logits[2 * delta] = dots[2] + matrix.bias[r2]
    logits[3 * delta] = dots[3] + matrix.bias[r3]


@inline_once
def fill(matrix, listed, ids, first, last, queries, q0, q1, q2, q3, count, logits):
    """Fill float32 logits of rows first .. last-1 (ids[first:last] if `listed`), in whole fours.

    The first `count` of the queries share every load; their logits are CHUNK apart.
    """
    if matrix.kind >= CODED and count > ALONE_CODED:
        rows = 1 if listed else ROWS_A_CALL
        for place in range(first, last, rows):
            row = np.int64(ids[place]) if listed else place
            _coded_few(
                matrix, row, min(rows, last - place), queries, q0, q1, q2, q3, count,
                shift(logits, place - first),
            )  # fmt: skip
        return
    sums = sixteen_floats()
    if listed:
        prefetch_beginnings(matrix, ids, first, min(first + ROWS_AHEAD, last))
    steps, stride, delta = _steps(listed, first, last)
    for step in range(steps):
        place = step * stride
        i = first + place
        if listed:
            prefetch_beginnings(matrix, ids, i + ROWS_AHEAD, min(i + ROWS_AHEAD + 4, last))
        r0, r1, r2, r3 = _four_rows(listed, ids, i, last, delta)
        _fill_dots(matrix, r0, r1, r2, r3, queries, q0, q1, q2, q3, count, sums)
        for j in range(count):
            own = shift(logits, place + j * CHUNK)
            _store_biased(matrix, r0, r1, r2, r3, shift(sums, 4 * j), own, delta)


@inline
def scan(matrix, listed, ids, first, last, queries, q0, q1, q2, q3, count):
    """Offer rows first .. last-1 (or the rows ids[first:last], if `listed`) to 1 .. 4 queries."""
    chunk = ALONE_CHUNK if count == 1 and not listed else CHUNK
    for start in range(first, last, chunk):
        begin, stop, rows = start, min(start + chunk, last), ids
        if count == 1 and queries.allowed.stride != 0:
            own = allowed_of(queries.allowed, q0)
            if listed:
                begin, stop = 0, pick_allowed(own, ids, start, stop, queries.picked)
                rows = queries.picked
            if stop == begin or (not listed and not any_allowed(own, start, stop)):
                continue
        fill(matrix, listed, rows, begin, stop, queries, q0, q1, q2, q3, count, queries.logits)
        for j in range(count):
            q, logits = (q0, q1, q2, q3)[j], shift(queries.logits, j * CHUNK)
            size, own = pad_lanes(logits, stop - begin), allowed_of(queries.allowed, q)
            if listed:
                forbid_listed(own, shift(rows, begin), stop - begin, logits)
            else:
                forbid(own, begin, size, logits)
            if listed and queries.states[STATE * q + SUMMED] != 0.0:
                _add_to_sum(logits, stop - begin, shift(queries.states, STATE * q))
            decide_above(matrix, listed, rows, begin, stop - begin, logits, queries, q)


@inline
def scan_one(matrix, listed, ids, first, last, queries, q):
    scan(matrix, listed, ids, first, last, queries, q, q, q, q, ONE)


@inline
def decodes(matrix, count):
    """Tell whether to decode rows once for all queries, not in registers for every four."""
    if matrix.kind < CODED:
        halves = matrix.row_bytes == 2 * matrix.dim
        return matrix.kind != F32 and not halves and count > 4
    return count > (FEW_CODED if matrix.kind == CODED else FEW_COSTLY)


@inline
def scan_all(matrix, queries, count, begin, end):
    decoding, tile = decodes(matrix, count), shared_rows(matrix)
    if count <= 4:
        tile = end - begin
    scratch = np.empty(tile_size(matrix) if decoding else 0, np.float32)
    for first in range(begin, end, tile):
        last = min(end, first + tile)
        floats = as_floats(matrix, first, last, pointer(scratch)) if decoding else matrix
        for q in range(0, count, 4):
            q0, q1, q2, q3, few = four_of(q, count)
            scan(floats, UNLISTED, queries.kept, first, last, queries, q0, q1, q2, q3, few)
    keep_alive(scratch)
