"""A proven interval of log Z from one pass of float32 dots, and the best rows of the same pass.

A row that may weigh more than e^-NEAR of the sum so far is evaluated by `dot64` and weighed in
float64. All others are float32 dots, a chunk of rows at a time, relative to the largest logit so
far, each within `slack` of the exact logit; where slack would let them say little, all rows are
`dot64`'s. Batching changes no bit, nor does how rows are stored: no codes are multiplied here.

An exponent is off by scale slack, by the rounding of the logit and of the largest one to float32
(ROUNDED of the largest and 90, as what is 87 below it is e^-87), and the exponential itself by
ROUGH. The error that this makes is added up as the sum is.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, Q queries answered together.
"""

from __future__ import annotations

from math import exp, expm1, log

import numpy as np

from logitsieve.kernels.compile import inline, kernel, splice
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.exponential import sum_of_exponentials
from logitsieve.kernels.simd.lanes import LANES, largest_of, load
from logitsieve.kernels.simd.masks import lanes_not_below, lowest_bit
from logitsieve.kernels.simd.pointers import as_float32, int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.descriptor import (
    ROWS,
    as_floats,
    by_values,
    exact_logit,
    matrix_at,
    slack_at,
    tile_room,
)
from logitsieve.kernels.topk.heap import sort_best_first
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, TOP, VALUE
from logitsieve.kernels.topk.queries import (
    CHUNK,
    NORM,
    at_once,
    empty_heaps,
    operand_of,
    queries_at,
    query_room,
    widen_queries,
)
from logitsieve.kernels.topk.queries import SLACK as QUERY_SLACK
from logitsieve.kernels.topk.queries import STATE as QUERY_STATE
from logitsieve.kernels.topk.scan import (
    LEAST_FOURS,
    UNLISTED,
    decide_above,
    fill_four,
    fill_one,
    tile_rows,
)

# Relative to e^MOST: what heavy rows weigh, what light ones do, and by how much those may be off.
# FLOOR: no row of a logit below it is heavy. GROWTH: e^x - 1 of what an exponent may be off by.
MOST, HEAVY, LIGHT, ERROR, CLOSE, SLACK, FLOOR, GROWTH = range(8)
STATE = 8
NEAR = 7.0  # nats: a row that weighs less than a thousandth of the sum so far is light
PLAIN = 1024.0  # a logarithm of the sum beyond which all chunks are looked through
LOOSE = 2.0**-6  # nats of slack from which on nothing is left to float32 dots
ROUGH = 2.0**-22  # of a float32 exponential, and of its exponent near 87
ROUNDED = 2.0**-22  # of a float32 logit, twice rounded, and of the one that it is relative to
# Of a sum in float64: a row's exponentials, and what each row adds and may make it relative to.
SUMMED, STEP = 2.0**-42, 2.0**-50
TINY = 2.0**-125  # of e^MOST: what e^-87 is put for, a row
LOG_SPARE, LOG_REACH = 2.0**-50, 50.0  # of |MOST| and of so many nats, for a logarithm


@kernel("(int64, float32[:,::1], int32[:,::1], float64[:,::1], float64[:,::1], int64, int64)")
def quick_log_z(address, hidden, ids, logits, log_z, start, stop):
    """Fill log_z [B, 4] for rows start .. stop-1 of hidden [B, D]: log of the sum of all e^x.

    A TOP of 0, an estimate, and two numbers that the logarithm is proven to lie between. The K <= V
    best ids, best first, and their exact logits go to `ids` and `logits` [B, K]; K may be 0.
    `address` is that of W's descriptor. Returns -1, or the first row that is not finite or too
    large.
    """
    descriptor = int64_pointer(address)
    limit, dim = ids.shape[1], hidden.shape[1]
    each = query_room(dim, limit) + STATE + CHUNK // 2
    block, bad = at_once(stop - start, each), -1
    scratch = np.empty(block * each, np.float64)
    sums = shift(pointer(scratch), block * query_room(dim, limit))
    found = as_float32(shift(sums, block * STATE))
    for first in range(start, stop, block):
        count = min(block, stop - first)
        rows, kept = row_of(pointer(hidden), first, dim), row_of(pointer(ids), first, limit)
        queries = queries_at(pointer(scratch), block, rows, kept, dim, limit, False)
        bad = widen_queries(descriptor, queries, count)
        if bad >= 0:
            bad += first
            break
        empty_heaps(descriptor, 0, queries, count)
        for q in range(count):
            state = shift(queries.states, QUERY_STATE * q)
            state[QUERY_SLACK] = slack_at(descriptor, 0, state[NORM])
            _begin(row_of(sums, q, STATE), state[QUERY_SLACK])
        _scan(by_values(matrix_at(descriptor, 0)), queries, sums, found, count)
        for q in range(count):
            best = shift(queries.values, q * limit)
            sort_best_first(best, shift(queries.kept, q * limit), limit)
            for i in range(limit):
                logits[first + q, i] = best[i]
            fields = row_of(pointer(log_z), first + q, FIELDS)
            _write(row_of(sums, q, STATE), descriptor[ROWS], fields)
    keep_alive(scratch)
    return bad


@inline
def _begin(sum_, slack):
    sum_[MOST], sum_[HEAVY], sum_[LIGHT], sum_[ERROR] = -np.inf, 0.0, 0.0, 0.0
    sum_[SLACK] = min(slack, LOOSE)  # beyond it no row is light
    sum_[CLOSE] = NEAR + 2.0 * slack if slack < LOOSE else np.inf
    sum_[FLOOR], sum_[GROWTH] = -np.inf, 0.0


@splice
def _scan(matrix, queries, sums, logits, count):
    """Add every row of the matrix to every query's sum, and offer it to its heap, by chunks."""
    tile, dim = tile_rows(matrix, count), matrix.dim
    room = np.empty(tile_room(matrix), np.float32)
    if count >= 4 * LEAST_FOURS:
        tile //= 2  # the L1 cache holds what is prefetched, too
    for first in range(0, matrix.rows, CHUNK):
        last = min(first + CHUNK, matrix.rows)
        for start in range(first, last, tile):
            stop = min(start + tile, last)
            floats = as_floats(matrix, start, stop, pointer(room)) if count > 1 else matrix
            _fill(floats, queries, count, start, stop, shift(logits, start - first))
        for q in range(count):
            found = row_of(logits, q, CHUNK)
            for i in range(last - first, padded(last - first)):
                found[i] = -np.inf
            if queries.limit > 0:
                decide_above(matrix, UNLISTED, queries.kept, first, last - first, found, queries, q)
            wide = row_of(queries.wide, q, padded(dim))
            _add(matrix, wide, row_of(sums, q, STATE), found, first, last)
    keep_alive(room)


@inline
def _fill(matrix, queries, count, first, last, logits):
    """Float32 logits of rows first .. last-1 for all queries, each one's CHUNK apart."""
    fours = count // 4 * 4
    ids = queries.kept  # of the right type, and not read: all rows are scanned
    for q in range(0, fours, 4):
        found = row_of(logits, q, CHUNK)
        fill_four(
            matrix, UNLISTED, ids, first, last, queries, q, q + 1, q + 2, q + 3, fours // 4, found
        )
    for q in range(fours, count):
        operand = operand_of(matrix, queries, q)
        fill_one(matrix, False, ids, first, last, operand, row_of(logits, q, CHUNK))


@inline
def _add(matrix, wide, sum_, logits, first, last):
    """Add a chunk's weights: those of heavy rows by their exact logits, then all others.

    After the chunk's logits there are -inf up to whole lanes.
    """
    count = last - first
    largest = float(largest_of(logits, count))
    if not largest < sum_[FLOOR]:
        _add_heavy(matrix, wide, sum_, logits, first, count, largest)
        largest = float(largest_of(logits, count))
    _move(sum_, largest)
    light = sum_of_exponentials(logits, count, np.float32(sum_[MOST]))
    if light > count * TINY:
        sum_[LIGHT] += light
        sum_[ERROR] += light * sum_[GROWTH]


@inline
def _add_heavy(matrix, wide, sum_, logits, first, count, largest):
    """Add the heavy rows of a chunk, whose logits become -inf, and raise FLOOR."""
    total = sum_[HEAVY] + sum_[LIGHT]
    so_far = sum_[MOST] + log(total) if total > 0 else -np.inf
    near = max(so_far, largest)
    # Rows of a size that float32 rounds by much are all heavy, too.
    threshold = np.float32(near - sum_[CLOSE] if ROUNDED * abs(near) < LOOSE else -np.inf)
    for i in range(0, count, LANES):
        mask = lanes_not_below(load(logits, i), threshold)
        while mask != 0:
            place = i + lowest_bit(mask)
            mask &= mask - 1
            if place < count:
                logit = exact_logit(matrix, wide, first + place)
                _move(sum_, logit)
                sum_[HEAVY] += exp(logit - sum_[MOST])
                logits[place] = -np.inf
    # The sum only grows; a nat is more than all of this is rounded by.
    sum_[FLOOR] = so_far - sum_[CLOSE] - 1.0 if abs(so_far) < PLAIN else -np.inf


@inline
def _move(sum_, logit):
    """Make the sums relative to `logit`, a float32 near it if light rows may follow."""
    if logit > sum_[MOST]:
        most = float(np.float32(logit)) if ROUNDED * abs(logit) < LOOSE else logit
        factor = exp(sum_[MOST] - most)
        sum_[HEAVY], sum_[LIGHT] = sum_[HEAVY] * factor, sum_[LIGHT] * factor
        sum_[ERROR], sum_[MOST] = sum_[ERROR] * factor, most
        sum_[GROWTH] = expm1(sum_[SLACK] + ROUNDED * (abs(most) + 90.0) + ROUGH)


@inline
def _write(sum_, rows, log_z):
    """TOP, VALUE, LOW and HIGH of a sum of that many rows."""
    total = sum_[HEAVY] + sum_[LIGHT]
    off = sum_[ERROR] + total * (SUMMED + STEP * rows) + rows * TINY
    rounded = LOG_SPARE * (abs(sum_[MOST]) + LOG_REACH)
    low = sum_[MOST] + log(total - off) if total > off else -np.inf
    high = sum_[MOST] + log(total + off)
    log_z[TOP], log_z[LOW], log_z[HIGH] = 0.0, low - rounded, high + rounded
    log_z[VALUE] = min(max(sum_[MOST] + log(total), log_z[LOW]), log_z[HIGH])
