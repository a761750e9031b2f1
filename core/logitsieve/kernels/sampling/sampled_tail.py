"""The sum of exponentials of all logits, estimated from a sample.

Levy, Chan, Ermon 2018, LSH Softmax, equation 4: Z_S + (V - s) / l times the sum over l ids drawn
uniformly, without replacement, from those outside S.

Shape letters: B batch rows, D hidden size, V vocabulary, S named ids of all rows.
"""

from __future__ import annotations

from collections import namedtuple
from math import exp, log, sqrt

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.philox import OUTSIDE, random_bits
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer
from logitsieve.kernels.topk.descriptor import exact_logit, matrix_at, widen_hidden

# Of values e^{x scale - top}: their mean, and the sum of squared deviations.
Moments = namedtuple("Moments", "mean squares top")


@kernel(
    "(int64, float32[:,::1], uint64[::1], float64, int64[::1], int32[::1], float64[::1],"
    " int64[::1], float32[:,::1])"
)
def sampled_log_z(address, hidden, seeds, scale, offsets, named, values, sizes, log_z):
    """Fill log_z [B, 2]: an estimate of log of the sum of all e^{x scale}, its standard error.

    Row r's ids named[offsets[r] : offsets[r+1]] have the logits values [S], -inf to exclude them;
    of the others sizes[r] are sampled. The logarithm's bias is corrected to second order. `address`
    is W's descriptor. Returns -1, or the first row that is not finite or too large.
    """
    descriptor = int64_pointer(address)
    matrix, (rows, dim) = matrix_at(descriptor, 0), hidden.shape
    scratch = np.empty(padded(dim), np.float64)
    wide, owners = pointer(scratch), np.full(matrix.rows, -1, np.int32)
    bad = -1
    for row in range(rows):
        if widen_hidden(descriptor, row_of(pointer(hidden), row, dim), wide) < 0:
            bad = row
            break
        top = -np.inf
        for i in range(offsets[row], offsets[row + 1]):
            owners[named[i]] = row
            top = max(top, values[i] * scale)
        rest = matrix.rows - (offsets[row + 1] - offsets[row])
        size = min(sizes[row], rest)
        every = 2 * size >= rest  # as cheap, and exact
        size = rest if every else size
        moments = _look(matrix, wide, pointer(owners), row, seeds[row], scale, top, size, every)
        total, variance = rest * moments.mean, 0.0
        for i in range(offsets[row], offsets[row + 1]):
            total += exp(values[i] * scale - moments.top)
        if not every and size > 1:
            left_out = float(rest) * rest * (1.0 - size / rest)
            variance = left_out * moments.squares / (size - 1) / size
        log_z[row, 0] = np.float32(moments.top + log(total) + variance / (2.0 * total * total))
        log_z[row, 1] = np.float32(sqrt(variance) / total)
    keep_alive(scratch)
    keep_alive(owners)
    return bad


@inline
def _look(matrix, wide, owners, row, seed, scale, top, size, every):
    """Return Moments of `size` ids that `row` does not own: all if `every`, else at random.

    `top` rises with larger logits, so that exponentials do not overflow.
    """
    mean, squares, count, trial, zero = 0.0, 0.0, 0, 0, np.uint64(0)
    while count < size:
        bits, _ = random_bits(seed, zero, OUTSIDE, np.uint64(trial))
        place = trial if every else np.int64(bits % np.uint64(matrix.rows))
        trial += 1
        if owners[place] == row:
            continue
        owners[place] = row
        count += 1
        scaled = exact_logit(matrix, wide, place) * scale
        if scaled > top:
            shrink = exp(top - scaled)
            mean, squares, top = mean * shrink, squares * shrink * shrink, scaled
        off = exp(scaled - top) - mean
        mean += off / count
        squares += off * (exp(scaled - top) - mean)
    return Moments(mean, squares, top)
