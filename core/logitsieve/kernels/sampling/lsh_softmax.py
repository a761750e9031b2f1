"""Draws and log Z from few logits: Levy, Chen, Ermon 2018, LSH Softmax.

Theorem 5, after Mussmann, Levy, Ermon 2017: with M the best perturbed logit among the candidates,
any other id, with a logit of at most `floor`, wins only if its noise exceeds t = M - floor. So it
is visited with the probability of that, 1 - e^{-e^{-t}}, and its noise is drawn from above t. Draws
are exact unless a logit outside the candidates exceeds `floor`. (The printed theorem fixes t in
advance, which is a slip: benchmarks/papers/README.md.)

Equation 4 estimates the sum of all exponentials as Z_S + (V - s) / l times the sum over l ids drawn
uniformly, without replacement, from those outside S.
"""

from collections import namedtuple
from math import exp, expm1, log, log1p, sqrt

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.gumbel import noise_of
from logitsieve.kernels.sampling.philox import OUTSIDE, random_bits, uniform
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.descriptor import exact_logit, matrix_at, widen_hidden

# The mean of values e^{x scale - top}, and the sum of their squared deviations.
Moments = namedtuple("Moments", "mean squares top")


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, int64[::1], int32[::1], float64[::1],"
    " float64[::1], int32[:,::1], int32[::1])"
)
def lazy_sample(
    address, hidden, seeds, step, inverse, offsets, named, values, floors, ids, scanned
):
    """Fill ids [B, N] with draws, and scanned [B] with the number of logits computed.

    `named` ids have the logits values [S], -inf to exclude them; others of row r are assumed to be
    at most floors[r].
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
        base = floors[row]  # subtracted from logits, in which noise could be lost
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
    keep_alive((scratch, owners))
    return bad


@inline
def _outside(
    matrix, wide, logits, owners, row, seed, step, draw, inverse, base, floor, place, most
):  # fmt: skip
    """Return (the winning id, logits computed), given the best perturbed logit `most` so far."""
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


@kernel(
    "(int64, float32[:,::1], uint64[::1], float64, int64[::1], int32[::1], float64[::1],"
    " int64[::1], float32[:,::1])"
)
def sampled_log_z(address, hidden, seeds, scale, offsets, named, values, sizes, log_z):
    """Fill log_z [B, 2] with an estimate of log Z and its standard error.

    `named` ids have the logits values [S], -inf to exclude them; sizes[r] of the others are
    sampled. The logarithm's bias is corrected to second order.
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
    keep_alive((scratch, owners))
    return bad


@inline
def _look(matrix, wide, owners, row, seed, scale, top, size, every):
    """Return Moments of `size` ids that `row` does not own: all if `every`, else at random."""
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
