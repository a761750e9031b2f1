"""log Z, the logarithm of the sum of all e^{scale x}, in float64 with proven bounds.

log Z = scale top + rest, with top the largest logit, rest = log(1 + S), and S the sum of all other
e^{scale (x - top)}, so that log p = scale (x - top) - rest is never above 0. log_z [B, 4] has the
columns TOP, VALUE, LOW and HIGH: `top`, `rest`, and proven bounds of `rest`.

A logit is `dot64` + bias, or an edit's value. Errors of S, relative to it (docs/exactness.md):

    SPREAD  rounding of the exponent, over all replacements of the top, and ERROR64
    STEP    for each addition and each replacement of the top
    TINY    of 1 for each row: the most that underflows
"""

from math import exp, log1p

import numpy as np

from logitsieve.kernels.compile import inline, inline_once, kernel
from logitsieve.kernels.rows.functions import F32
from logitsieve.kernels.simd.dots import dots64_2x1, dots64_2x2, pad_lanes, padded, row_of
from logitsieve.kernels.simd.exponential import exp64_lanes
from logitsieve.kernels.simd.lanes import LANES, largest_of, load, pair_sum, zeros64
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.allowed import allowed_at, allowed_of, forbid
from logitsieve.kernels.topk.descriptor import (
    as_floats,
    matrix_at,
    shared_rows,
    tile_size,
    widen_hidden,
)
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, TOP, VALUE
from logitsieve.kernels.topk.queries import CHUNK, at_once

SPREAD, STEP, TINY = 2.0**-41, 2.0**-51, 2.0**-1000
LOG_ERROR = 2.0**-51  # relative error of log1p

SUM, NEXT = 1, 2  # a sum's state is TOP, S, and the next edit to apply
STATE = 3


@kernel(
    "(int64, float32[:,::1], float64, int64[::1], int32[::1], float64[::1], float64[:,::1],"
    " int64, int64)"
)
def dense_log_z(address, hidden, scale, offsets, edited, values, log_z, start, stop):
    """Fill log_z [B, 4]; `values` [E] replace the logits of ascending `edited` ids."""
    descriptor = int64_pointer(address)
    matrix, dim = matrix_at(descriptor, 0), hidden.shape[1]
    each = padded(dim) + CHUNK + STATE
    block = at_once(stop - start, each)
    scratch = np.empty(block * each, np.float64)
    tile_scratch = np.empty(tile_size(matrix), np.float32)
    wide = pointer(scratch)
    logits = shift(wide, block * padded(dim))
    sums = shift(logits, block * CHUNK)
    for first in range(start, stop, block):
        count, allowed = min(block, stop - first), allowed_at(descriptor, first)
        for q in range(count):
            h = row_of(pointer(hidden), first + q, dim)
            if widen_hidden(descriptor, h, row_of(wide, q, padded(dim))) < 0:
                return first + q
            state = row_of(sums, q, STATE)
            _begin(state)
            state[NEXT] = offsets[first + q]
        for chunk in range(0, matrix.rows, CHUNK):
            rows = min(CHUNK, matrix.rows - chunk)
            last, decoded = chunk + rows, pointer(tile_scratch)
            fill_logits64(matrix, decoded, wide, count, chunk, last, logits, CHUNK)
            for q in range(count):
                state, own = row_of(sums, q, STATE), row_of(logits, q, CHUNK)
                forbid(allowed_of(allowed, q), chunk, padded(rows), own)
                _edit(edited, values, offsets[first + q + 1], chunk, chunk + rows, state, own)
                _add(state, own, rows, scale)
        for q in range(count):
            state, fields = row_of(sums, q, STATE), row_of(pointer(log_z), first + q, FIELDS)
            _write(state, matrix.rows, fields)
    keep_alive((scratch, tile_scratch))
    return np.int64(-1)


@inline_once
def fill_logits64(matrix, decoded, wide, count, first, last, logits, stride):
    dim, alone = matrix.dim, count == 1 and matrix.kind == F32
    tile = CHUNK if alone else shared_rows(matrix)
    for start_row in range(first, last, tile):
        end = min(start_row + tile, last)
        floats, half = as_floats(matrix, start_row, end, decoded), (end - start_row + 1) // 2
        middle = start_row + half  # where the second of two streams of rows begins
        for q in range(0, count - 1, 2):
            one, other = row_of(wide, q, padded(dim)), row_of(wide, q + 1, padded(dim))
            own, next_ = row_of(logits, q, stride), row_of(logits, q + 1, stride)
            for row in range(start_row, middle):
                after = min(row + half, end - 1)
                w, v = row_of(floats.weight, row, dim), row_of(floats.weight, after, dim)
                here, there = dots64_2x2(w, v, one, other, dim)
                bias, place = matrix.bias[row], row - first
                own[place], next_[place] = here[0] + bias, here[1] + bias
                bias, place = matrix.bias[after], after - first
                own[place], next_[place] = there[0] + bias, there[1] + bias
        if count % 2:
            one, own = row_of(wide, count - 1, padded(dim)), row_of(logits, count - 1, stride)
            for row in range(start_row, middle):
                after = min(row + half, end - 1)
                w, v = row_of(floats.weight, row, dim), row_of(floats.weight, after, dim)
                dots = dots64_2x1(w, v, one, dim)
                own[row - first] = dots[0] + matrix.bias[row]
                own[after - first] = dots[1] + matrix.bias[after]


@inline
def _edit(edited, values, end, first, last, state, logits):
    i = int(state[NEXT])
    while i < end and edited[i] < last:
        logits[edited[i] - first] = values[i]
        i += 1
    state[NEXT] = i


@kernel("(int64[::1], float64[::1], float64, float64[:,::1])")
def csr_log_z(offsets, logits, scale, log_z):
    """Fill log_z [B, 4] of CSR logits; if all are -inf, TOP is 0 and the rest -inf."""
    scratch = np.empty(CHUNK + STATE, np.float64)
    chunk = pointer(scratch)
    state = shift(chunk, CHUNK)
    for row in range(log_z.shape[0]):
        _begin(state)
        counted = 0
        for first in range(offsets[row], offsets[row + 1], CHUNK):
            count = min(CHUNK, offsets[row + 1] - first)
            for i in range(count):
                chunk[i] = logits[first + i]
                counted += logits[first + i] > -np.inf
            _add(state, chunk, count, scale)
        _write(state, counted, row_of(pointer(log_z), row, FIELDS))
    keep_alive(scratch)


@inline
def _begin(state):
    state[TOP], state[SUM] = -np.inf, 0.0


@inline
def _add(state, logits, count, scale):
    end = pad_lanes(logits, count)
    best = largest_of(logits, end)
    if best > state[TOP]:
        if state[TOP] > -np.inf:
            state[SUM] = (state[SUM] + 1.0) * exp((state[TOP] - best) * scale)
        state[TOP] = best
        place = 0
        while logits[place] != best:
            place += 1
        logits[place] = -np.inf  # it is the 1 of log(1 + S)
    if state[TOP] > -np.inf:
        state[SUM] += _sum_of_exponentials(logits, end, state[TOP], scale)


@inline
def _sum_of_exponentials(logits, count, top, scale):
    total = zeros64()
    for i in range(0, count, LANES):
        scaled = (load(logits, i) - top) * scale
        total += exp64_lanes(scaled)
    return pair_sum(total)


@inline
def _write(state, rows, log_z):
    additions = CHUNK // LANES + LANES + 2 * (rows // CHUNK + 1)
    write_log_z(state[TOP], state[SUM], rows, additions, log_z)


@inline
def write_log_z(top, sum_, rows, additions, log_z):
    if top == -np.inf:
        log_z[TOP], log_z[VALUE], log_z[LOW], log_z[HIGH] = 0.0, -np.inf, -np.inf, -np.inf
        return
    tiny, spread = max(0, rows - 1) * TINY, SPREAD + STEP * additions
    log_z[TOP], log_z[VALUE] = top, log1p(sum_)
    log_z[LOW] = log1p(max(0.0, sum_ * (1.0 - spread) - tiny)) * (1.0 - LOG_ERROR)
    log_z[HIGH] = log1p(sum_ * (1.0 + spread) + tiny) * (1.0 + LOG_ERROR)
