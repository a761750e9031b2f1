"""Gumbel-max draws that look at little of the noise.

Levy, Chan, Ermon 2018, LSH Softmax, Theorem 5, after Mussmann, Levy, Ermon 2017. Let M be the best
perturbed logit among the candidates. An id outside them, with a logit of at most `floor`, wins only
if its noise exceeds t = M - floor. So each id outside is visited with that probability, 1 -
e^{-e^{-t}}, and its noise is drawn from above t. The theorem as printed fixes t before anything is
drawn, by l / C, and fails if M is below floor + t: for k candidates in (1 - l / C)^k <= e^{-k l /
C} of all draws. So k l >= C log 1/delta is needed instead of the printed k = l >= sqrt(log
1/delta), and m ~ Binomial(C - k, l / C) instead of C. Here draws are exact unless an outside logit
exceeds `floor`.

Shape letters: B batch rows, D hidden size, V vocabulary, N draws, S named ids of all rows.
"""

from __future__ import annotations

from math import exp, expm1, log, log1p

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.gumbel import noise_of
from logitsieve.kernels.sampling.philox import OUTSIDE, random_bits, uniform
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.descriptor import exact_logit, matrix_at, widen_hidden


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, int64[::1], int32[::1], float64[::1],"
    " float64[::1], int32[:,::1], int32[::1])"
)
def lazy_sample(
    address, hidden, seeds, step, inverse, offsets, named, values, floors, ids, scanned
):
    """Fill ids [B, N] for rows of hidden [B, D], computing few logits besides the given ones.

    Row r's ids named[offsets[r] : offsets[r+1]] have the logits values [S], -inf to exclude them;
    all other logits are assumed to be at most floors[r]. scanned [B] counts computed logits.
    `address` is W's descriptor. Returns -1, or the first row that is not finite or too large.
    """
    descriptor = int64_pointer(address)
    matrix, (rows, dim) = matrix_at(descriptor, 0), hidden.shape
    scratch = np.empty(padded(dim) + matrix.rows, np.float64)
    wide, logits = pointer(scratch), shift(pointer(scratch), padded(dim))
    owners = np.full(matrix.rows, -1, np.int32)
    bad = -1
    for row in range(rows):
        if widen_hidden(descriptor, row_of(pointer(hidden), row, dim), wide) < 0:
            bad = row
            break
        for i in range(matrix.rows):
            logits[i] = np.nan
        base = floors[row]  # so that noise is not lost in large logits
        for i in range(offsets[row], offsets[row + 1]):
            owners[named[i]] = row
            base = max(base, values[i])
        computed, floor = 0, (floors[row] - base) * inverse
        for draw in range(ids.shape[1]):
            key = np.uint64(draw)
            place, most = -1, -np.inf
            for i in range(offsets[row], offsets[row + 1]):
                noise = noise_of(seeds[row], step, key, np.int64(named[i]))
                value = (values[i] - base) * inverse + noise
                if value > most or (value == most and named[i] < place):
                    place, most = int(named[i]), value
            outside = _outside(
                matrix, wide, logits, pointer(owners), row, seeds[row], step, key, inverse, base,
                floor, place, most,
            )  # fmt: skip
            ids[row, draw] = outside[0]
            computed += outside[1]
        scanned[row] = computed
    keep_alive(scratch)
    keep_alive(owners)
    return bad


@inline
def _outside(
    matrix, wide, logits, owners, row, seed, step, draw, inverse, base, floor, place, most
):  # fmt: skip
    """Return (the winning id, logits computed), given the best perturbed logit `most` so far.

    Logits are (x - base) inverse; those outside are at most `floor`. Gaps between visited ids are
    geometric. `logits` caches computed logits.
    """
    computed, at, trial = 0, -1, np.uint64(0)
    rate = -expm1(-exp(floor - most))
    while rate > 0:  # it is 0 if `most` is much larger than `floor`
        gap, noise = random_bits(seed, step, draw | OUTSIDE, trial)
        trial += np.uint64(1)
        skipped = 0.0 if rate >= 1 else log(uniform(gap)) / log1p(-rate)
        if not at + 1 + skipped < matrix.rows:
            break
        at += 1 + int(skipped)
        if owners[at] == row:
            continue
        if logits[at] != logits[at]:
            logits[at] = exact_logit(matrix, wide, at)
            computed += 1
        # Uniform above 1 - rate, so that the noise is above t.
        value = (logits[at] - base) * inverse - log(-log1p(-rate * uniform(noise)))
        if value > most or (value == most and at < place):
            place, most = at, value
    return place, computed
