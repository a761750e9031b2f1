"""Draws from all ids by the Gumbel-max trick: the id with the largest x_i / T + G_i.

G_i = -log E_i, with exponential E_i. One random number u (stream LEAST) gives the least E_i of a
block of sixteen ids, -log(u) / 16, and its owner; the others exceed it by exponentials of their own
(stream NOISE). So a block that cannot win costs one number.

An id reaches a value M only if E_i <= w_i e^-M, with a weight w_i = e^{x_i / T}. As -log u >= 1 -
u, blocks and then ids are tested in float32 without a logarithm, the few that pass in float64. M is
log Z less GUESSED, then the best value found if no id reaches that, once in e^(e^GUESSED) draws.
"""

from collections import namedtuple
from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, inline_once, kernel
from logitsieve.kernels.sampling.log_z import fill_logits64, write_log_z
from logitsieve.kernels.sampling.philox import LEAST, NOISE, bits_of, rest_lanes, uniform
from logitsieve.kernels.simd.dots import pad_lanes, padded, row_of
from logitsieve.kernels.simd.exponential import exp64_lanes
from logitsieve.kernels.simd.lanes import (
    LANES,
    largest_lane,
    largest_of,
    load,
    multiply_add,
    pair_sum,
    store,
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
from logitsieve.kernels.topk.allowed import allowed_at, allowed_of, forbid
from logitsieve.kernels.topk.descriptor import matrix_at, tile_size, widen_hidden
from logitsieve.kernels.topk.merge import FIELDS
from logitsieve.kernels.topk.queries import at_once

BLOCK = LANES
SPARE = 1 + 1e-6  # covers rounding of a weight in float32 and float64
FARTHEST = 1e36  # 16 FARTHEST times a weight is within float32
GUESSED = 1.5  # nats
# Noise is from -3.67 to 39.52, so a winner's weight is at least e^-43.2, within float32.
MASS_SPARE = 1 - 1e-9  # covers rounding of the total weight

# Pointers to `size` elements, V in whole lanes: edited logits and weights e^{(x - most) inverse},
# float64; weights `drawn`, 0 for excluded ids, and bounds of each block's, float32; two lists.
DrawState = namedtuple(
    "DrawState", "logits weights drawn heaviest blocks ids rows size best most inverse"
)


@inline
def noise_of(seed, step, draw, row):
    bits = bits_of(seed, step, draw | LEAST, row // BLOCK)
    exponential = -log(uniform(bits)) / BLOCK
    if row % BLOCK != _place_of(bits):
        exponential -= log(uniform(bits_of(seed, step, draw | NOISE, row)))
    return -log(exponential)


@kernel("(uint64, uint64, int32[:,::1], float64[:,::1])")
def gumbel_noise(seed, step, ids, noise):
    """Fill noise [N, K] of ids [N, K] in draws 0 .. N-1; -inf for ids below 0."""
    for draw in range(ids.shape[0]):
        for i in range(ids.shape[1]):
            row = np.int64(ids[draw, i])
            noise[draw, i] = noise_of(seed, step, np.uint64(draw), row) if row >= 0 else -np.inf


@inline
def _place_of(bits):
    return np.int64(bits & np.uint64(BLOCK - 1))


@inline
def may_be_within(limit, seed, step, draw, row):
    """Return False only if an id's exponential exceeds `limit`, which includes SPARE."""
    bits = bits_of(seed, step, draw | LEAST, row // BLOCK)
    if 1.0 - uniform(bits) > BLOCK * limit:
        return False
    if row % BLOCK == _place_of(bits):
        return True
    return 1.0 - uniform(bits_of(seed, step, draw | NOISE, row)) <= limit


@inline
def find_heaviest(weights, size, heaviest):
    for block in range(size // BLOCK):
        heaviest[block] = largest_lane(load(weights, block * BLOCK))
    for block in range(size // BLOCK, padded(size // BLOCK)):
        heaviest[block] = np.float32(0)


@inline
def list_candidates(
    weights, heaviest, stride, size, first_id, reached, seed, step, draw, blocks, ids
):  # fmt: skip
    """List the rows that may reach `reached`, by float32 weights; return their number.

    Row i is id first_id + i, with first_id a multiple of 2 BLOCK. `heaviest` holds bounds of each
    block's weights. With a stride of 0 instead of 1, all blocks have the first one's weights.
    """
    factor, block_count, count = min(SPARE * exp(-reached), FARTHEST), 0, 0
    block_factor, first_block = np.float32(factor * BLOCK), first_id // BLOCK
    for first in range(0, size // BLOCK, LANES):
        limits = load(heaviest, first * stride) * block_factor
        mask = lanes_within(rest_lanes(seed, step, draw | LEAST, first_block + first), limits)
        block_count = append_lanes(blocks, block_count, mask, first)
    for i in range(block_count):
        block = np.int64(blocks[i])
        bits, row = bits_of(seed, step, draw | LEAST, first_block + block), block * BLOCK
        own, start = _place_of(bits), row * stride
        lanes, least = load(weights, start), (1.0 - uniform(bits)) / BLOCK
        heaviest[block * stride] = largest_lane(lanes)
        limits = multiply_add(lanes, np.float32(factor), np.float32(-least))
        rest = rest_lanes(seed, step, draw | NOISE, first_id + row)
        mask = lanes_within(rest, limits) & ~(1 << own)
        mask |= np.int64(weights[start + own] * factor >= least) << own
        count = append_lanes(ids, count, mask, row)
    return count


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, float64, float64, int64, int64[::1],"
    " int32[::1], float64[::1], int32[:,::1], float64[:,::1], int64, int64)"
)
def gumbel_sample(
    address, hidden, seeds, step, inverse, top_p, min_p, first_id, offsets, edited, values, ids,
    log_z, start, stop,
):  # fmt: skip
    """Fill ids [B, N], drawn at a temperature of 1 / inverse, and log_z [B, 4] (log_z.py).

    `values` [E] replace the logits of `edited` ids, -inf to exclude them; then top_p and min_p
    apply, as in Hugging Face. For first_id see `list_candidates`.
    """
    descriptor = int64_pointer(address)
    matrix, dim = matrix_at(descriptor, 0), hidden.shape[1]
    size = padded(matrix.rows)
    block = at_once(stop - start, padded(dim) + size)
    wide = np.empty(block * padded(dim), np.float64)
    state_size = 2 * size + 2 * LANES + padded(size // BLOCK)
    scratch = np.empty(block * size + state_size, np.float64)
    decoded = np.empty(tile_size(matrix), np.float32)
    every = pointer(scratch)
    for first in range(start, stop, block):
        count, allowed = min(block, stop - first), allowed_at(descriptor, first)
        for q in range(count):
            h, own = row_of(pointer(hidden), first + q, dim), row_of(pointer(wide), q, padded(dim))
            if widen_hidden(descriptor, h, own) < 0:
                return first + q
        fill_logits64(matrix, pointer(decoded), pointer(wide), count, 0, matrix.rows, every, size)
        for q in range(count):
            row, logits = first + q, row_of(every, q, size)
            forbid(allowed_of(allowed, q), 0, size, logits)
            for i in range(offsets[row], offsets[row + 1]):
                logits[edited[i]] = values[i]
            state = draw_state_at(shift(every, block * size), logits, matrix.rows, size, inverse)
            remaining, others = _weigh(state, top_p, min_p)
            find_heaviest(state.drawn, size, state.heaviest)
            fields = row_of(pointer(log_z), row, FIELDS)
            write_log_z(state.most, others, remaining, remaining, fields)
            guess = log(1.0 + others) - GUESSED
            for draw in range(ids.shape[1]):
                ids[row, draw] = _winner(state, first_id, guess, seeds[row], step, np.uint64(draw))
    keep_alive((wide, scratch, decoded))
    return np.int64(-1)


@inline
def draw_state_at(scratch, logits, rows, size, inverse):
    most, best = largest_of(logits, pad_lanes(logits, rows)), 0
    while logits[best] < most:
        best += 1
    drawn = as_float32(shift(scratch, size))
    heaviest = shift(drawn, size)
    blocks = as_int32(shift(heaviest, padded(size // BLOCK)))
    ids = shift(blocks, padded(size // BLOCK) + LANES)
    return DrawState(logits, scratch, drawn, heaviest, blocks, ids, rows, size, best, most, inverse)


@inline_once
def _weigh(state, top_p, min_p):
    state.logits[state.best] = -np.inf  # in a sum its weight of 1 could absorb the others
    sums = zeros64()
    for i in range(0, state.size, LANES):
        lanes = exp64_lanes((load(state.logits, i) - state.most) * state.inverse)
        store(state.weights, i, lanes)
        sums += lanes
    total = pair_sum(sums)
    state.logits[state.best], state.weights[state.best] = state.most, 1.0
    if top_p == 1.0 and min_p == 0.0:
        for i in range(state.size):
            state.drawn[i] = np.float32(state.weights[i])
        return state.rows, total
    remaining = _filter(state, 1.0 + total, top_p, min_p)
    for i in range(state.size):
        state.drawn[i] = np.float32(0)
    others = 0.0
    for i in range(remaining):
        place = state.ids[i]
        state.drawn[place] = np.float32(state.weights[place])
        others += state.weights[place] if place != state.best else 0.0
    return remaining, others


@inline_once
def _filter(state, total, top_p, min_p):
    """List the ids that filters leave, given the weight `total` of all; return their number."""
    outside = (1.0 - top_p) * total / state.rows * MASS_SPARE
    least, count = max(min_p, outside), 0
    for i in range(0, state.size, LANES):
        mask = lanes_not_below(load(state.weights, i), least)
        count = append_lanes(state.ids, count, mask, i)
    if top_p == 1.0:
        return count
    # Quickselect: ids before `first` are in the nucleus.
    first, before = 0, 0.0
    while first < count:
        split, mass = _partition(state, first, count)
        if before + mass < top_p * total:
            before += mass + state.weights[state.ids[split]]
            first = split + 1
        else:
            count = split
    return first


@inline
def _partition(state, first, last):
    ids = state.ids
    middle, split, mass = (first + last) // 2, first, 0.0
    pivot, ids[middle] = ids[middle], ids[last - 1]
    for i in range(first, last - 1):
        one = ids[i]
        logit, limit = state.logits[one], state.logits[pivot]
        if logit > limit or (logit == limit and one < pivot):
            mass += state.weights[one]
            ids[i], ids[split] = ids[split], one
            split += 1
    ids[last - 1], ids[split] = ids[split], pivot
    return split, mass


@inline
def _winner(state, first_id, reached, seed, step, draw):
    place, most = state.best, noise_of(seed, step, draw, first_id + state.best)
    while True:
        count = list_candidates(
            state.drawn, state.heaviest, 1, state.size, first_id, reached, seed, step, draw,
            state.blocks, state.ids,
        )  # fmt: skip
        for j in range(count):
            i = state.ids[j]
            value = (state.logits[i] - state.most) * state.inverse
            value += noise_of(seed, step, draw, first_id + i)
            if value > most or (value == most and i < place):
                place, most = i, value
        if most >= reached:
            return place
        reached = most
