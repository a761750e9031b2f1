"""Draws from the whole softmax by Gumbel's trick: the id with the largest x_i / T + G_i.

G_i = -log(-log u_i), u_i being the row's noise at the id (philox.py, stream NOISE: place id / 2,
which of its two numbers: id mod 2). Every logit is computed, once for all draws, in dot64's order.
With top-p and min-p the largest is taken among the ids that they leave (Hugging Face's definition
and order): noise restricted to a set draws from the softmax over that set, so an id that remains
keeps its noise, and no draw is made twice.

Scaled logits are taken from the largest: in large ones the noise would be lost, and the winner
among equal ones always the first. An id can reach a value M only if -log u_i <= w_i e^-M, with w_i
= e^{x_i / T}, and -log u >= 1 - u: one pass of vectors over all ids compares these in float32, and
the few ids that pass are compared in float64. M is the logarithm of the sum of all w_i, less
GUESSED: the winner is below it once in e^(e^GUESSED), and then M is lowered.

Shape letters: B batch rows, D hidden size, V vocabulary, N draws, E edits of all rows.
"""

from __future__ import annotations

from collections import namedtuple
from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, kernel, splice
from logitsieve.kernels.sampling.log_z import fill_logits64, write_log_z
from logitsieve.kernels.sampling.philox import NOISE, random_bits, uniform
from logitsieve.kernels.sampling.random_lanes import rest_lanes
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.exponential import exp64_lanes
from logitsieve.kernels.simd.lanes import (
    LANES,
    largest_of64,
    load,
    multiply_add,
    pair_sum,
    splat32,
    splat64,
    store,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.masks import append_lanes, lanes_not_below, lanes_within
from logitsieve.kernels.simd.pointers import (
    as_float32,
    as_int32,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
)
from logitsieve.kernels.topk.descriptor import matrix_at, widen_hidden
from logitsieve.kernels.topk.merge import FIELDS
from logitsieve.kernels.topk.queries import at_once

SPARE = 1 + 1e-6  # of a weight, for what float32 and float64 round it to
GUESSED, LOWERED = 1.5, 2.0  # nats that the guess is below log Z, and that it is lowered by
# The best id has a scaled logit of 0 and noise of -log(-log 2^-53) = -3.61 at least; noise is at
# most -log(-log(1 - 2^-53)) = 36.74. So no winner is below LEAST, and none has a weight below
# e^-40.4, which float32 holds.
LEAST = -4.0
MASS_SPARE = 1 - 1e-9  # of a weight, for what a sum of all is rounded by

# Pointers to float64 logits, as edited, and weights e^{(x - most) inverse}; float32 weights, 0 for
# ids that are not drawn from; and a list of ids. They hold `size` elements: V in whole lanes.
Race = namedtuple("Race", "logits weights drawn listed rows size best most inverse")


@inline
def gumbel(bits):
    return -log(-log(uniform(bits)))


@inline
def noise_of(seed, step, draw, row):
    """The random bits that belong to an id of a draw."""
    even, odd = random_bits(seed, step, draw | NOISE, np.uint64(row >> 1))
    return odd if row & 1 else even


@inline
def list_candidates(weights, size, reached, seed, step, draw, listed):
    """List the ids that may reach `reached`, by float32 weights, 0 where none may; their number.

    Of `size` ids, in whole lanes. One of weight 0 is listed once in 2^31.
    """
    reach, count = splat32(np.float32(min(SPARE * exp(-reached), 1e38))), 0
    for i in range(0, size, LANES):
        limits = multiply_add(load(weights, i), reach, zeros32())
        mask = lanes_within(rest_lanes(seed, step, draw | NOISE, i), limits)
        if mask != 0:
            count = append_lanes(listed, count, mask, i)
    return count


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, float64, float64, int64[::1],"
    " int32[::1], float64[::1], int32[:,::1], float64[:,::1], int64, int64)"
)
def gumbel_sample(
    address, hidden, seeds, step, inverse, top_p, min_p, offsets, edited, values, ids, log_z,
    start, stop,
):  # fmt: skip
    """Fill ids [B, N] for rows start .. stop-1 of hidden [B, D], at a temperature of 1 / inverse.

    The logits of edited[offsets[r] : offsets[r+1]] are `values` [E] instead, -inf for what must not
    be drawn. Of all others top_p and min_p leave some; 1 and 0 leave all. log_z [B, 4] is that of
    e^{x / T} of what remains, as in log_z.py. `address` is that of W's descriptor. Returns -1, or
    the first row that is not finite or too large. Batching changes no bit.
    """
    descriptor = int64_pointer(address)
    matrix, dim = matrix_at(descriptor, 0), hidden.shape[1]
    size = padded(matrix.rows)
    block = at_once(stop - start, padded(dim) + size)
    scratch = np.empty(block * (padded(dim) + size) + 2 * size + LANES, np.float64)
    wide = pointer(scratch)
    all_logits = shift(wide, block * padded(dim))
    weights = shift(all_logits, block * size)
    drawn = as_float32(shift(weights, size))
    listed = as_int32(shift(drawn, size))
    bad = -1
    for first in range(start, stop, block):
        count = min(block, stop - first)
        for q in range(count):
            h = row_of(pointer(hidden), first + q, dim)
            if widen_hidden(descriptor, h, row_of(wide, q, padded(dim))) < 0 and bad < 0:
                bad = first + q
        if bad >= 0:
            break
        fill_logits64(matrix, wide, count, 0, matrix.rows, all_logits, size)
        for q in range(count):
            row, logits = first + q, row_of(all_logits, q, size)
            for i in range(offsets[row], offsets[row + 1]):
                logits[edited[i]] = values[i]
            best = _best_of(logits, matrix.rows, size)
            most = logits[best]
            race = Race(logits, weights, drawn, listed, matrix.rows, size, best, most, inverse)
            kept, others = _weigh(race, top_p, min_p)
            write_log_z(most, others, kept, kept, row_of(pointer(log_z), row, FIELDS))
            guess = log(1.0 + others) - GUESSED
            for draw in range(ids.shape[1]):
                ids[row, draw] = _winner(race, guess, seeds[row], step, np.uint64(draw))
    keep_alive(scratch)
    return bad


@inline
def _best_of(logits, rows, size):
    """The first of the largest logits; whole lanes are filled up."""
    for i in range(rows, size):
        logits[i] = -np.inf
    most, best = largest_of64(logits, size), 0
    while logits[best] < most:
        best += 1
    return best


@splice
def _weigh(race, top_p, min_p):
    """Fill the weights; how many ids filters leave, and what they weigh but for the best."""
    total, one, zero = zeros64(), splat64(1.0), zeros64()
    down, factor = splat64(-race.most), splat64(race.inverse)
    race.logits[race.best] = -np.inf  # its weight is 1, and not added to what it may swallow
    for i in range(0, race.size, LANES):
        apart = multiply_add(load(race.logits, i), one, down)
        lanes = exp64_lanes(multiply_add(apart, factor, zero))
        store(race.weights, i, lanes)
        total = multiply_add(lanes, one, total)
    race.logits[race.best], race.weights[race.best] = race.most, 1.0
    if top_p == 1.0 and min_p == 0.0:
        for i in range(race.size):
            race.drawn[i] = np.float32(race.weights[i])
        return race.rows, pair_sum(total)
    kept, others = _filter(race, 1.0 + pair_sum(total), top_p, min_p), 0.0
    for i in range(race.size):
        race.drawn[i] = np.float32(0)
    for i in range(kept):
        place = race.listed[i]
        race.drawn[place] = np.float32(race.weights[place])
        others += race.weights[place] if place != race.best else 0.0
    return kept, others


@splice
def _filter(race, total, top_p, min_p):
    """List the ids that filters leave, of which all weigh `total`; their number.

    The nucleus has an id if those before it weigh less than top_p of all. Ids that weigh less than
    1 - top_p of all even together are not in it.
    """
    outside = (1.0 - top_p) * total / race.rows * MASS_SPARE
    least, count = max(min_p, outside), 0
    for i in range(0, race.size, LANES):
        mask = lanes_not_below(load(race.weights, i), least)
        count = append_lanes(race.listed, count, mask, i)
    if top_p == 1.0:
        return count
    # As in quickselect, so that each id is looked at a few times: those before `first` are in.
    first, before = 0, 0.0
    while first < count:
        split, mass = _partition(race, first, count)
        if before + mass < top_p * total:
            before += mass + race.weights[race.listed[split]]
            first = split + 1
        else:
            count = split
    return first


@inline
def _partition(race, first, last):
    """Put the better of listed[first:last] before one of them: its place, and what they weigh."""
    listed = race.listed
    middle, split, mass = (first + last) // 2, first, 0.0
    pivot, listed[middle] = listed[middle], listed[last - 1]
    for i in range(first, last - 1):
        one = listed[i]
        logit, limit = race.logits[one], race.logits[pivot]
        if logit > limit or (logit == limit and one < pivot):
            mass += race.weights[one]
            listed[i], listed[split] = listed[split], one
            split += 1
    listed[last - 1], listed[split] = listed[split], pivot
    return split, mass


@inline
def _winner(race, reached, seed, step, draw):
    """The id that wins a draw, whose value is guessed to be `reached` or more."""
    place, most = race.best, gumbel(noise_of(seed, step, draw, race.best))
    while True:
        count = list_candidates(race.drawn, race.size, reached, seed, step, draw, race.listed)
        for j in range(count):
            i = race.listed[j]
            if race.drawn[i] > 0:
                value = (race.logits[i] - race.most) * race.inverse
                value += gumbel(noise_of(seed, step, draw, i))
                if value > most or (value == most and i < place):
                    place, most = i, value
        if most >= reached or reached < LEAST:
            return place
        reached -= LOWERED
