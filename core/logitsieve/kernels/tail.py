"""The sum of exponentials of all logits, most of which are only sampled.

Levy, Chan, Ermon 2018, LSH Softmax, equation 4: Z_S + (V - s) / l times the sum over l ids drawn
uniformly, without replacement, from those outside S.

Shape letters: B batch rows, D hidden size, V vocabulary, S named ids of all rows.
"""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.dots import padded, row_of, widen_row
from logitsieve.kernels.gather import sum_of
from logitsieve.kernels.philox import OUTSIDE, random_bits
from logitsieve.kernels.pointers import int64_pointer, keep_alive, pointer
from logitsieve.kernels.record import admissible, matrix_at
from logitsieve.types.results import Float32, Float64, Int32, Int64


@kernel(
    "(int64, float32[:,::1], uint64[::1], float64, int64[::1], int32[::1], float64[::1],"
    " int64[::1], float32[:,::1])"
)
def sampled_log_z(
    address: int,
    hidden: Float32,
    seeds: np.ndarray,
    scale: float,
    offsets: Int64,
    named: Int32,
    values: Float64,
    sizes: Int64,
    log_z: Float32,
) -> int:
    """Fill log_z [B, 2], an estimate of the log of the sum of all e^{x scale}, its standard error.

    Row r's ids named[offsets[r] : offsets[r+1]] have the logits values [S], -inf for none; of the
    others sizes[r] are sampled. The logarithm's bias is corrected to second order. `address` is W's
    record's. Returns -1, or the first row that is not finite or too large.
    """
    record = int64_pointer(address)
    matrix, (rows, dim) = matrix_at(record, 0), hidden.shape
    scratch = np.empty(padded(dim), np.float64)
    wide, owners = pointer(scratch), np.full(matrix.rows, -1, np.int32)
    bad = -1
    for row in range(rows):
        norm = np.sqrt(widen_row(row_of(pointer(hidden), row, dim), wide, dim))
        if not admissible(record, 0, norm):
            bad = row
            break
        top = -np.inf
        for i in range(offsets[row], offsets[row + 1]):
            owners[named[i]] = row
            top = max(top, values[i] * scale)
        if not top > -np.inf:
            top = 0.0
        inside = 0.0
        for i in range(offsets[row], offsets[row + 1]):
            inside += exp(values[i] * scale - top)
        rest = matrix.rows - (offsets[row + 1] - offsets[row])
        total, variance = _outside(
            matrix, wide, pointer(owners), row, seeds[row], scale, top, rest, min(sizes[row], rest)
        )
        total += inside
        log_z[row, 0] = np.float32(top + log(total) + variance / (2.0 * total * total))
        log_z[row, 1] = np.float32(sqrt(variance) / total)
    keep_alive(scratch)
    keep_alive(owners)
    return bad


@inline
def _outside(matrix, wide, owners, row, seed, scale, top, rest, size):
    """(The estimated sum of the `rest` ids that row `row` does not own, its variance)."""
    every, zero = 2 * size >= rest, np.uint64(0)  # as cheap, and nothing is estimated
    size = rest if every else size
    mean, squares, count, trial = 0.0, 0.0, 0, 0
    while count < size:
        bits, _ = random_bits(seed, zero, OUTSIDE, np.uint64(trial))
        place = trial if every else np.int64(bits % np.uint64(matrix.rows))
        trial += 1
        if owners[place] == row:
            continue
        owners[place] = row
        count += 1
        value = exp(sum_of(matrix, wide, place) * scale - top)
        off = value - mean
        mean += off / count
        squares += off * (value - mean)
    if every or size < 2:
        return rest * mean, 0.0
    return rest * mean, float(rest) * rest * (1.0 - size / rest) * squares / (size - 1) / size
