"""Draws from the whole softmax by Gumbel's trick: the id with the largest x_i / T + G_i.

Gumbel noise is G_i = -log E_i, the E_i being independent and exponential. Those of sixteen ids, a
block, are drawn by their least, which is exponential with rate 16 and belongs to any of them: the
others exceed it by exponentials (an exponential has no memory). So a block that cannot win by its
least costs one random number: -log(u) / 16, u being the block's (philox.py, stream LEAST), whose
lowest bits say which of the ids has it. Another id's E_i is more by -log u, u being the id's
(stream NOISE).

Every logit is computed, once for all draws, in dot64's order. With top-p and min-p the largest is
taken among the ids that they leave (Hugging Face's definition and order): noise restricted to a set
draws from the softmax over that set, so an id that remains keeps its noise, and no draw is made
twice.

Scaled logits are taken from the largest: in large ones the noise would be lost, and the winner
among equal ones always the first. An id can reach a value M only if E_i <= w_i e^-M, with w_i =
e^{x_i / T}, and -log u >= 1 - u: vectors of blocks, then of ids, compare these in float32, and
the few ids that pass are compared in float64. M is the logarithm of the sum of all w_i, less
GUESSED: the winner is below it once in e^(e^GUESSED), and then M is the best that was found.

Shape letters: B batch rows, D hidden size, V vocabulary, N draws, E edits of all rows.
"""

from __future__ import annotations

from collections import namedtuple
from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, kernel, splice
from logitsieve.kernels.sampling.log_z import fill_logits64, write_log_z
from logitsieve.kernels.sampling.philox import LEAST, NOISE, bits_of, uniform
from logitsieve.kernels.sampling.random_lanes import rest_lanes
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.exponential import exp64_lanes
from logitsieve.kernels.simd.lanes import (
    LANES,
    largest_lane,
    largest_of,
    load,
    multiply_add,
    pair_sum,
    splat32,
    splat64,
    store,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.masks import (
    append_lanes,
    lanes_not_below,
    lanes_within,
)
from logitsieve.kernels.simd.pointers import (
    as_float32,
    as_int32,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
)
from logitsieve.kernels.topk.descriptor import matrix_at, tile_room, widen_hidden
from logitsieve.kernels.topk.merge import FIELDS
from logitsieve.kernels.topk.queries import at_once

BLOCK = LANES  # ids whose least noise has a number of its own
SPARE = 1 + 1e-6  # of a weight, for what float32 and float64 round it to
FARTHEST = 1e36  # 16 times that, and times a weight, is a float32
GUESSED = 1.5  # nats that the guess is below log Z
# An exponential is from 2^-53 / 16 to 17 / 16 log 2^53, so noise is from -3.67 to 39.52. The best
# id has a scaled logit of 0, so no winner is below -3.67, and none has a weight below e^-43.2,
# which float32 holds.
MASS_SPARE = 1 - 1e-9  # of a weight, for what a sum of all is rounded by

# Pointers to float64 logits, as edited, and weights e^{(x - most) inverse}; float32 weights, 0 for
# ids that are not drawn from; and a list of ids. They hold `size` elements: V in whole lanes.
# `heaviest`: the largest of these weights of each block, and room for a list of `blocks`.
Race = namedtuple("Race", "logits weights drawn heaviest blocks listed rows size best most inverse")


@inline
def noise_of(seed, step, draw, row):
    """The Gumbel noise of an id of a draw."""
    bits = bits_of(seed, step, draw | LEAST, row // BLOCK)
    exponential = -log(uniform(bits)) / BLOCK
    if row % BLOCK != _place_of(bits):
        exponential -= log(uniform(bits_of(seed, step, draw | NOISE, row)))
    return -log(exponential)


@kernel("(uint64, uint64, int32[:,::1], float64[:,::1])")
def gumbel_noise(seed, step, ids, noise):
    """Fill noise [N, K] of the ids [N, K] of draws 0 .. N-1; -inf for ids below 0."""
    for draw in range(ids.shape[0]):
        for i in range(ids.shape[1]):
            row = np.int64(ids[draw, i])
            noise[draw, i] = noise_of(seed, step, np.uint64(draw), row) if row >= 0 else -np.inf


@inline
def _place_of(bits):
    """The place within a block of the id with the least exponential."""
    return np.int64(bits & np.uint64(BLOCK - 1))


@inline
def may_be_within(limit, seed, step, draw, row):
    """False only if an id's exponential is above a limit, of which SPARE is spare."""
    bits = bits_of(seed, step, draw | LEAST, row // BLOCK)
    if 1.0 - uniform(bits) > BLOCK * limit:
        return False
    if row % BLOCK == _place_of(bits):
        return True
    return 1.0 - uniform(bits_of(seed, step, draw | NOISE, row)) <= limit


@inline
def find_heaviest(weights, size, heaviest):
    """Fill heaviest [size / BLOCK, in whole lanes] from weights of `size` ids."""
    for block in range(size // BLOCK):
        heaviest[block] = largest_lane(load(weights, block * BLOCK))
    for block in range(size // BLOCK, padded(size // BLOCK)):
        heaviest[block] = np.float32(0)


@inline
def list_candidates(weights, heaviest, size, first_id, reached, seed, step, draw, blocks, listed):
    """List the rows that may reach `reached`, by float32 weights, 0 where none may; their number.

    Row i of `size`, in whole lanes, is id first_id + i, first_id being a multiple of 2 BLOCK.
    `heaviest` is no less than any weight of a block, and `blocks` has room for all.
    """
    reach, many, count = min(SPARE * exp(-reached), FARTHEST), 0, 0
    far, first_block = splat32(np.float32(reach * BLOCK)), first_id // BLOCK
    for first in range(0, size // BLOCK, LANES):
        limits = multiply_add(load(heaviest, first), far, zeros32())
        mask = lanes_within(rest_lanes(seed, step, draw | LEAST, first_block + first), limits)
        many = append_lanes(blocks, many, mask, first)
    for i in range(many):  # no step waits for one before, or for what it decides
        block = np.int64(blocks[i])
        bits, row = bits_of(seed, step, draw | LEAST, first_block + block), block * BLOCK
        lanes, least, own = load(weights, row), (1.0 - uniform(bits)) / BLOCK, _place_of(bits)
        heaviest[block] = largest_lane(lanes)
        limits = multiply_add(lanes, splat32(np.float32(reach)), splat32(np.float32(-least)))
        rest = rest_lanes(seed, step, draw | NOISE, first_id + row)
        mask = lanes_within(rest, limits) & ~(1 << own)
        mask |= np.int64(weights[row + own] * reach >= least) << own
        count = append_lanes(listed, count, mask, row)
    return count


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, float64, float64, int64, int64[::1],"
    " int32[::1], float64[::1], int32[:,::1], float64[:,::1], int64, int64)"
)
def gumbel_sample(
    address, hidden, seeds, step, inverse, top_p, min_p, first_id, offsets, edited, values, ids,
    log_z, start, stop,
):  # fmt: skip
    """Fill ids [B, N] for rows start .. stop-1 of hidden [B, D], at a temperature of 1 / inverse.

    The logits of edited[offsets[r] : offsets[r+1]] are `values` [E] instead, -inf for what must not
    be drawn. Of all others top_p and min_p leave some; 1 and 0 leave all. log_z [B, 4] is that of
    e^{x / T} of what remains, as in log_z.py. Row i of W has the noise of id first_id + i, first_id
    being a multiple of 32. `address` is that of W's descriptor. Returns -1, or the first row that
    is not finite or too large. Batching changes no bit.
    """
    descriptor = int64_pointer(address)
    matrix, dim = matrix_at(descriptor, 0), hidden.shape[1]
    size = padded(matrix.rows)
    block = at_once(stop - start, padded(dim) + size)
    wide = np.empty(block * padded(dim), np.float64)
    scratch = np.empty(block * size + race_room(size), np.float64)
    room = np.empty(tile_room(matrix), np.float32)
    every = pointer(scratch)
    for first in range(start, stop, block):
        count = min(block, stop - first)
        for q in range(count):
            h, own = row_of(pointer(hidden), first + q, dim), row_of(pointer(wide), q, padded(dim))
            if widen_hidden(descriptor, h, own) < 0:
                return first + q
        fill_logits64(matrix, pointer(room), pointer(wide), count, 0, matrix.rows, every, size)
        for q in range(count):
            row, logits = first + q, row_of(every, q, size)
            for i in range(offsets[row], offsets[row + 1]):
                logits[edited[i]] = values[i]
            race = race_at(shift(every, block * size), logits, matrix.rows, size, inverse)
            kept, others = _weigh(race, top_p, min_p)
            find_heaviest(race.drawn, size, race.heaviest)
            write_log_z(race.most, others, kept, kept, row_of(pointer(log_z), row, FIELDS))
            guess = log(1.0 + others) - GUESSED
            for draw in range(ids.shape[1]):
                ids[row, draw] = _winner(race, first_id, guess, seeds[row], step, np.uint64(draw))
    keep_alive(wide)
    keep_alive(scratch)
    keep_alive(room)
    return np.int64(-1)


@inline
def race_room(size):
    """float64 values of scratch for `race_at`."""
    return 2 * size + 2 * LANES + padded(size // BLOCK)


@inline
def race_at(scratch, logits, rows, size, inverse):
    """The race of the logits of that many rows, which are filled up to `size`: whole lanes."""
    for i in range(rows, size):
        logits[i] = -np.inf
    most, best = largest_of(logits, size), 0
    while logits[best] < most:
        best += 1
    drawn = as_float32(shift(scratch, size))
    heaviest = shift(drawn, size)
    blocks = as_int32(shift(heaviest, padded(size // BLOCK)))
    listed = shift(blocks, padded(size // BLOCK) + LANES)
    return Race(logits, scratch, drawn, heaviest, blocks, listed, rows, size, best, most, inverse)


@splice
def _weigh(race, top_p, min_p):
    """Fill the weights; how many ids filters leave, and what they weigh but for the best."""
    race.logits[race.best] = -np.inf  # its weight is 1, and not added to what it may swallow
    total = _fill_weights(race)
    race.logits[race.best], race.weights[race.best] = race.most, 1.0
    if top_p == 1.0 and min_p == 0.0:
        for i in range(race.size):
            race.drawn[i] = np.float32(race.weights[i])
        return race.rows, total
    kept = _keep(race, 1.0 + total, top_p, min_p)
    for i in range(race.size):
        race.drawn[i] = np.float32(0)
    for i in range(kept):
        race.drawn[race.listed[i]] = np.float32(race.weights[race.listed[i]])
    return kept, _weight_of(race, kept)


@inline
def _fill_weights(race):
    """Fill the weights; their sum."""
    one, zero, total = splat64(1.0), zeros64(), zeros64()
    down, factor = splat64(-race.most), splat64(race.inverse)
    for i in range(0, race.size, LANES):
        apart = multiply_add(load(race.logits, i), one, down)
        lanes = exp64_lanes(multiply_add(apart, factor, zero))
        store(race.weights, i, lanes)
        total = multiply_add(lanes, one, total)
    return pair_sum(total)


@inline
def _weight_of(race, kept):
    """The weights of the ids listed[:kept], but for the best."""
    others = 0.0
    for i in range(kept):
        place = race.listed[i]
        others += race.weights[place] if place != race.best else 0.0
    return others


@splice
def _keep(race, total, top_p, min_p):
    """List the ids that filters leave, where all V weigh `total`; their number.

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
def _winner(race, first_id, reached, seed, step, draw):
    """The row that wins a draw, whose value is guessed to be `reached` or more."""
    place, most = race.best, noise_of(seed, step, draw, first_id + race.best)
    while True:
        count = list_candidates(
            race.drawn, race.heaviest, race.size, first_id, reached, seed, step, draw,
            race.blocks, race.listed,
        )  # fmt: skip
        for j in range(count):
            i = race.listed[j]
            value = (race.logits[i] - race.most) * race.inverse
            value += noise_of(seed, step, draw, first_id + i)
            if value > most or (value == most and i < place):
                place, most = i, value
        if most >= reached:
            return place
        reached = most
