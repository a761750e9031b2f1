"""Lists of logits, best first: the cut by top-p and min-p, and draws from the remaining ids.

A draw takes the largest x_i / T + G_i of a CSR list, with the noise of gumbel.py: the winner among
all ids, if the list has it.
"""

from math import exp

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.gumbel import SPARE, may_be_within, noise_of
from logitsieve.kernels.simd.pointers import keep_alive, pointer, shift

CLOSE = 1e-9  # of a weight or a mass: above the rounding differences of two summations


@kernel("(int64[::1], float64[::1], float64, float64, float64, int64[::1])")
def cut_lists(offsets, logits, inverse, top_p, min_p, lengths):
    """Fill lengths [B] of the prefixes that top-p and min-p leave, by weights e^{x inverse}."""
    for row in range(lengths.size):
        first, count = offsets[row], offsets[row + 1] - offsets[row]
        most, total, mass, length = logits[first] * inverse, 0.0, 0.0, 0
        for i in range(count):
            total += exp(logits[first + i] * inverse - most)
        while length < count and (top_p == 1.0 or mass < top_p * total):
            weight = exp(logits[first + length] * inverse - most)
            if weight < min_p:
                break
            mass += weight
            length += 1
        lengths[row] = length


@kernel("(int64[::1], float64[::1], float64, float64, float64, int64[::1])")
def cut_best(offsets, logits, inverse, top_p, min_p, lengths):
    """Fill lengths [B]: how many of all ids top-p and min-p leave, given lists of the best ids.

    -1 if a list cannot tell: all of it may remain, or an id is too close to an edge.
    """
    for row in range(lengths.size):
        first, count = offsets[row], offsets[row + 1] - offsets[row]
        total, mass, length = 0.0, 0.0, 0
        for i in range(count):
            total += exp((logits[first + i] - logits[first]) * inverse)
        lengths[row] = -1
        while length < count:
            weight = exp((logits[first + length] - logits[first]) * inverse)
            if weight < min_p * (1.0 - CLOSE):
                lengths[row] = length
                break
            if weight < min_p * (1.0 + CLOSE):
                break
            if top_p < 1.0 and not mass * (1.0 + CLOSE) < top_p * total:
                break
            mass += weight
            length += 1


@kernel("(int64[::1], int32[::1], float64[::1], uint64[::1], uint64, float64, int32[:,::1])")
def list_sample(offsets, ids, logits, seeds, step, inverse, places):
    """Fill places [B, N] within the lists, drawn at a temperature of 1 / inverse.

    Logits are finite, and the first of a list is its largest.
    """
    longest = 0
    for row in range(places.shape[0]):
        longest = max(longest, offsets[row + 1] - offsets[row])
    scratch = np.empty(2 * longest, np.float64)
    scaled = pointer(scratch)
    weights = shift(scaled, longest)
    for row in range(places.shape[0]):
        first, count = offsets[row], offsets[row + 1] - offsets[row]
        for i in range(count):
            scaled[i] = (logits[first + i] - logits[first]) * inverse
            weights[i] = exp(scaled[i])
        named = shift(pointer(ids), first)
        for draw in range(places.shape[1]):
            key = np.uint64(draw)
            places[row, draw] = _winner(named, scaled, weights, count, seeds[row], step, key)
    keep_alive(scratch)


@inline
def _winner(ids, scaled, weights, count, seed, step, draw):
    place, most = 0, noise_of(seed, step, draw, ids[0])
    limit = SPARE * exp(-most)
    for i in range(1, count):
        if may_be_within(weights[i] * limit, seed, step, draw, ids[i]):
            value = scaled[i] + noise_of(seed, step, draw, ids[i])
            if value > most or (value == most and ids[i] < ids[place]):
                place, most = i, value
                limit = SPARE * exp(-most)
    return place
