"""Draws from the whole softmax by Gumbel's trick: the id with the largest x_i / T + G_i.

G_i = -log(-log u_i), u_i being the row's noise at the id (philox.py, stream NOISE: place id / 2,
which of its two numbers: id mod 2). Every logit is computed, once for all draws, in dot64's order.

Scaled logits are taken from the largest: in large ones the noise would be lost, and the winner
among equal ones always the first. An id that cannot win is passed over by one comparison: with m
the best so far, it wins only if -log u_i < e^{x_i / T - m}, and -log u >= 1 - u.

Shape letters: B batch rows, D hidden size, V vocabulary, N draws, E edits of all rows.
"""

from __future__ import annotations

from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.log_z import write_log_z
from logitsieve.kernels.sampling.philox import NOISE, random_bits, uniform
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.csr import exact_logit
from logitsieve.kernels.topk.descriptor import matrix_at, widen_hidden
from logitsieve.kernels.topk.merge import FIELDS

SPARE = 1 + 1e-6  # of a weight, for what float64 rounds it to


@inline
def gumbel(bits):
    return -log(-log(uniform(bits)))


@inline
def noise_of(seed, step, draw, row):
    """The random bits that belong to an id of a draw."""
    even, odd = random_bits(seed, step, draw | NOISE, np.uint64(row >> 1))
    return odd if row & 1 else even


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, int64[::1], int32[::1], float64[::1],"
    " int32[:,::1], float64[:,::1], int64, int64)"
)
def gumbel_sample(
    address, hidden, seeds, step, inverse, offsets, edited, values, ids, log_z, start, stop
):
    """Fill ids [B, N] for rows start .. stop-1 of hidden [B, D], at a temperature of 1 / inverse.

    The logits of edited[offsets[r] : offsets[r+1]] are `values` [E] instead, -inf for what must not
    be drawn. log_z [B, 4] is that of all e^{x / T}, as in log_z.py. `address` is that of W's
    descriptor. Returns -1, or the first row that is not finite or too large.
    """
    descriptor = int64_pointer(address)
    matrix, dim = matrix_at(descriptor, 0), hidden.shape[1]
    scratch = np.empty(padded(dim) + 2 * matrix.rows, np.float64)
    wide = pointer(scratch)
    scaled = shift(wide, padded(dim))
    weights = shift(scaled, matrix.rows)
    bad = -1
    for row in range(start, stop):
        if widen_hidden(descriptor, row_of(pointer(hidden), row, dim), wide) < 0:
            bad = row
            break
        for i in range(matrix.rows):
            scaled[i] = exact_logit(matrix, wide, i)
        for i in range(offsets[row], offsets[row + 1]):
            scaled[edited[i]] = values[i]
        best = 0
        for i in range(1, matrix.rows):
            best = i if scaled[i] > scaled[best] else best
        most, total = scaled[best], 0.0
        for i in range(matrix.rows):
            scaled[i] = (scaled[i] - most) * inverse
            weights[i] = exp(scaled[i])
            total += weights[i] if i != best else 0.0
        write_log_z(most, total, matrix.rows, matrix.rows, row_of(pointer(log_z), row, FIELDS))
        for draw in range(ids.shape[1]):
            key = np.uint64(draw)
            ids[row, draw] = _largest(scaled, weights, matrix.rows, best, seeds[row], step, key)
    keep_alive(scratch)
    return bad


@inline
def _largest(scaled, weights, rows, best, seed, step, draw):
    """The id that wins a draw; `best` has the largest logit: 0 when scaled, of weight 1."""
    place, most = best, gumbel(noise_of(seed, step, draw, best))
    reach = SPARE * exp(-most)
    for pair in range((rows + 1) // 2):
        both = random_bits(seed, step, draw | NOISE, np.uint64(pair))
        for i in range(2 * pair, min(2 * pair + 2, rows)):
            bits = both[1] if i & 1 else both[0]
            if 1.0 - uniform(bits) <= weights[i] * reach:
                value = scaled[i] + gumbel(bits)
                if value > most or (value == most and i < place):
                    place, most = i, value
                    reach = SPARE * exp(-most)
    return place
