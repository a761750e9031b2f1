"""log Z over all rows of W: the logarithm of the sum of all exponentials.

Float32 dots, a chunk of rows at a time, relative to the largest logit so far; never all in memory.
A row that may weigh more than e^-LIGHT of the sum so far is evaluated by `dot64` instead. What is
left errs by its rounding, far within `slack` a row, times its share of all weight; and where slack
would let a float32 dot say anything, all rows are `dot64`'s. Batching changes no bit.

Shape letters: B batch rows, D hidden size, V vocabulary, Q queries answered together.
"""

from __future__ import annotations

from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, kernel, splice
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.exponential import sum_of_exponentials
from logitsieve.kernels.simd.lanes import LANES, largest_of, load
from logitsieve.kernels.simd.masks import lanes_not_below, lowest_bit
from logitsieve.kernels.simd.pointers import as_int32, int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.csr import exact_logit
from logitsieve.kernels.topk.descriptor import matrix_at, slack_at, widen_hidden
from logitsieve.kernels.topk.queries import CHUNK, at_once
from logitsieve.kernels.topk.scan import UNLISTED, fill_four, fill_one, tile_rows

MOST, TOTAL, CLOSE, STATE = range(4)
LIGHT = 7.0  # nats: under a thousandth
LOOSE = 2.0**-6  # nats of slack from which on nothing is left to float32 dots


@kernel("(int64, float32[:,::1], float64, float32[::1], int64, int64)")
def dense_log_z(address, hidden, scale, log_z, start, stop):
    """Fill log_z [B] for rows start .. stop-1 of hidden [B, D]: log of the sum of e^{scale x}.

    `address` is that of W's descriptor. Returns -1, or the first row that is not finite or too
    large.
    """
    descriptor = int64_pointer(address)
    matrix, dim = matrix_at(descriptor, 0), hidden.shape[1]
    block = at_once(stop - start, padded(dim) + STATE + CHUNK)
    scratch = np.empty(block * (padded(dim) + STATE), np.float64)
    logits = np.empty(block * CHUNK, np.float32)
    wide = pointer(scratch)
    sums = shift(wide, block * padded(dim))
    bad = -1
    for first in range(start, stop, block):
        count, rows = min(block, stop - first), row_of(pointer(hidden), first, dim)
        for q in range(count):
            norm = widen_hidden(descriptor, row_of(rows, q, dim), row_of(wide, q, padded(dim)))
            if norm < 0 and bad < 0:
                bad = first + q
            slack, sum_ = slack_at(descriptor, 0, norm) * scale, row_of(sums, q, STATE)
            sum_[MOST], sum_[TOTAL] = -np.inf, 0.0
            sum_[CLOSE] = LIGHT + 2.0 * slack if slack < LOOSE else np.inf
        if bad >= 0:
            break
        ids = as_int32(wide)  # of the right type, and not read: all rows are scanned
        _scan(matrix, rows, ids, wide, sums, pointer(logits), scale, count)
        for q in range(count):
            sum_ = row_of(sums, q, STATE)
            log_z[first + q] = np.float32(sum_[MOST] + log(sum_[TOTAL]))
    keep_alive(scratch)
    keep_alive(logits)
    return bad


@splice
def _scan(matrix, hidden, ids, wide, sums, logits, scale, count):
    """Add every row of the matrix to every query's sum, a chunk at a time."""
    tile = tile_rows(matrix, count)
    for first in range(0, matrix.rows, CHUNK):
        last = min(first + CHUNK, matrix.rows)
        for start in range(first, last, tile):
            stop = min(start + tile, last)
            _fill(matrix, hidden, ids, count, start, stop, shift(logits, start - first))
        for q in range(count):
            widened = row_of(wide, q, padded(matrix.dim))
            _add(
                matrix,
                widened,
                row_of(sums, q, STATE),
                row_of(logits, q, CHUNK),
                first,
                last,
                scale,
            )


@inline
def _fill(matrix, hidden, ids, count, first, last, logits):
    """Float32 logits of rows first .. last-1 for all queries, each one's CHUNK apart."""
    dim, fours = matrix.dim, count // 4 * 4
    for q in range(0, fours, 4):
        four = row_of(logits, q, CHUNK)
        fill_four(matrix, UNLISTED, ids, first, last, hidden, q, q + 1, q + 2, q + 3, four)
    for q in range(fours, count):
        fill_one(matrix, False, ids, first, last, row_of(hidden, q, dim), row_of(logits, q, CHUNK))


@inline
def _add(matrix, wide, sum_, logits, first, last, scale):
    """Add a chunk's exponentials to a running sum, relative to the largest so far."""
    count = last - first
    for i in range(count, padded(count)):
        logits[i] = -np.inf
    if scale != 1.0:
        for i in range(count):
            logits[i] = np.float32(logits[i] * scale)
    so_far = sum_[MOST] + log(sum_[TOTAL]) if sum_[TOTAL] > 0 else -np.inf
    threshold = np.float32(max(so_far, float(largest_of(logits, count))) - sum_[CLOSE])
    for i in range(0, count, LANES):
        mask = lanes_not_below(load(logits, i), threshold)
        while mask != 0:
            place = i + lowest_bit(mask)
            mask &= mask - 1
            if place < count:
                row = first + place
                logits[place] = np.float32(np.float32(exact_logit(matrix, wide, row)) * scale)
    most = max(sum_[MOST], float(largest_of(logits, count)))
    kept = sum_[TOTAL] * exp(sum_[MOST] - most) if sum_[TOTAL] > 0 else 0.0
    sum_[TOTAL] = kept + sum_of_exponentials(logits, count, np.float32(most))
    sum_[MOST] = most
