"""log Z over all rows of W: the logarithm of the sum of all exponentials, exactly.

Logits are dot64's, rounded to float32, and never all in memory: a running sum is kept relative to
the largest logit so far. Four queries share each row of W that is loaded.

Shape letters: B batch rows, D hidden size, V vocabulary, Q queries answered together.
"""

from __future__ import annotations

from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, kernel, splice
from logitsieve.kernels.dots import dots64_1x4, dots64_4x1, padded, row_of, widen_row
from logitsieve.kernels.exponential import sum_of_exponentials
from logitsieve.kernels.pointers import int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.queries import CHUNK, at_once
from logitsieve.kernels.record import admissible, matrix_at
from logitsieve.types.results import Float32

MOST, TOTAL = range(2)
FOUR = 4


@kernel("(int64, float32[:,::1], float64, float32[::1], int64, int64)")
def dense_log_z(
    address: int, hidden: Float32, scale: float, log_z: Float32, start: int, stop: int
) -> int:
    """Fill log_z [B] for rows start .. stop-1 of hidden [B, D]: log of the sum of e^{scale x}.

    `address` is that of W's record. Returns -1, or the first row that is not finite or too large.
    """
    record = int64_pointer(address)
    matrix, dim = matrix_at(record, 0), hidden.shape[1]
    block = at_once(stop - start, dim, 2)
    scratch = np.empty(block * (padded(dim) + 2), np.float64)
    logits = np.empty(FOUR * CHUNK, np.float32)
    wide = pointer(scratch)
    sums = shift(wide, block * padded(dim))
    bad = -1
    for first in range(start, stop, block):
        count = min(block, stop - first)
        for q in range(count):
            h = row_of(pointer(hidden), first + q, dim)
            norm = np.sqrt(widen_row(h, row_of(wide, q, padded(dim)), dim))
            if not admissible(record, 0, norm) and bad < 0:
                bad = first + q
            sums[2 * q + MOST], sums[2 * q + TOTAL] = -np.inf, 0.0
        if bad >= 0:
            break
        _scan(matrix, wide, sums, pointer(logits), scale, count)
        for q in range(count):
            log_z[first + q] = np.float32(sums[2 * q + MOST] + log(sums[2 * q + TOTAL]))
    keep_alive(scratch)
    keep_alive(logits)
    return bad


@splice
def _scan(matrix, wide, sums, logits, scale, count):
    """Add every row of the matrix to every query's sum, a chunk at a time."""
    fours = count // FOUR * FOUR
    for first in range(0, matrix.rows, CHUNK):
        rows = min(CHUNK, matrix.rows - first)
        for q in range(0, fours, FOUR):
            _fill_four(matrix, wide, q, first, rows, scale, logits)
            for j in range(FOUR):
                _add(shift(sums, 2 * (q + j)), shift(logits, j * CHUNK), rows)
        for q in range(fours, count):
            _fill_one(matrix, row_of(wide, q, padded(matrix.dim)), first, rows, scale, logits)
            _add(shift(sums, 2 * q), logits, rows)


@inline
def _fill_four(matrix, wide, q, first, rows, scale, logits):
    """Logits of a chunk of rows of W for queries q .. q + 3."""
    stride = padded(matrix.dim)
    h = q * stride
    for i in range(rows):
        w = row_of(matrix.weight, first + i, matrix.dim)
        dots = dots64_1x4(w, wide, h, h + stride, h + 2 * stride, h + 3 * stride, matrix.dim)
        bias = matrix.bias[first + i]
        logits[i] = np.float32(np.float32(dots[0] + bias) * scale)
        logits[CHUNK + i] = np.float32(np.float32(dots[1] + bias) * scale)
        logits[2 * CHUNK + i] = np.float32(np.float32(dots[2] + bias) * scale)
        logits[3 * CHUNK + i] = np.float32(np.float32(dots[3] + bias) * scale)


@inline
def _fill_one(matrix, wide, first, rows, scale, logits):
    """Logits of a chunk of rows of W for one query."""
    dim, last = matrix.dim, first + rows - 1
    for i in range(0, rows, FOUR):
        a = first + i
        b, c, e = min(a + 1, last), min(a + 2, last), min(a + 3, last)
        dots = dots64_4x1(matrix.weight, a * dim, b * dim, c * dim, e * dim, wide, dim)
        logits[i] = np.float32(np.float32(dots[0] + matrix.bias[a]) * scale)
        logits[b - first] = np.float32(np.float32(dots[1] + matrix.bias[b]) * scale)
        logits[c - first] = np.float32(np.float32(dots[2] + matrix.bias[c]) * scale)
        logits[e - first] = np.float32(np.float32(dots[3] + matrix.bias[e]) * scale)


@inline
def _add(sum_, logits, rows):
    """Add a chunk's exponentials to a running sum, relative to the largest so far."""
    most = sum_[MOST]
    for i in range(rows):
        most = max(most, float(logits[i]))
    kept = sum_[TOTAL] * exp(sum_[MOST] - most) if sum_[TOTAL] > 0 else 0.0
    sum_[TOTAL] = kept + sum_of_exponentials(logits, rows, np.float32(most))
    sum_[MOST] = most
