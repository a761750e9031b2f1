from __future__ import annotations

from math import log

import numpy as np

from logitsieve.api.results import Float64, Int32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.philox import OUTSIDE, random_bits

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@inline
def mixed(key, place):
    """Return SplitMix64's output (Steele, Lea, Flood 2014) number `place` after `key`."""
    bits = key + (np.uint64(place) + np.uint64(1)) * GOLDEN
    bits = (bits ^ (bits >> SHIFTS[0])) * FACTORS[0]
    bits = (bits ^ (bits >> SHIFTS[1])) * FACTORS[1]
    return bits ^ (bits >> SHIFTS[2])


@inline
def _mark(taken, ids):
    fresh = 0
    for i in range(ids.size):
        if ids[i] >= 0 and not taken[ids[i]]:
            taken[ids[i]] = 1
            fresh += 1
    return fresh


@inline
def _unmark(taken, ids):
    for i in range(ids.size):
        if ids[i] >= 0:
            taken[ids[i]] = 0


@inline
def _by_rejection(taken, out, seed, step, draw):
    vocab_size, count, trial = np.uint64(taken.size), 0, np.uint64(0)
    while count < out.size:
        for bits in random_bits(seed, step, draw, trial):
            place = np.int64(bits % vocab_size)
            if count < out.size and not taken[place]:
                taken[place] = 1
                out[count] = place
                count += 1
        trial += np.uint64(1)


@inline
def _from_the_rest(taken, rest, out, seed, step, draw):
    free, count = np.empty(rest, np.int32), 0
    for place in range(taken.size):
        if not taken[place]:
            free[count] = place
            count += 1
    for i in range(out.size):
        bits, _ = random_bits(seed, step, draw, np.uint64(i))
        j = i + np.int64(bits % np.uint64(rest - i))
        free[i], free[j] = free[j], free[i]
        out[i] = free[i]
        taken[out[i]] = 1


@kernel("(int64[::1], int32[::1], int64[:,::1], int64, uint64, uint64, int64)")
def add_uniform_sample(
    offsets: Int64, ids: Int32, targets: Int64, count: int, seed: int, step: int, n_classes: int
) -> tuple[Int64, Int32, Float64]:  # fmt: skip
    """Return CSR (offsets, ids, log-weights): each row's ids and up to `count` uniform others.

    Others are drawn without repetition, and not among the row's targets [B, M] (padded by -1); each
    has the number of ids that it stands for as its weight, the row's own ids 1. A row takes O(ids +
    count), or O(V) if `count` is over half of the rest.
    """
    rows, taken = offsets.size - 1, np.zeros(n_classes, np.uint8)
    starts = np.zeros(rows + 1, np.int64)
    out = np.empty(ids.size + rows * min(count, taken.size), np.int32)
    weights = np.zeros(out.size)
    for row in range(rows):
        row_ids = ids[offsets[row] : offsets[row + 1]]
        rest = taken.size - _mark(taken, row_ids) - _mark(taken, targets[row])
        size = min(count, rest)
        middle = starts[row] + row_ids.size
        end = middle + size
        out[starts[row] : middle] = row_ids
        drawn, draw = out[middle:end], OUTSIDE | np.uint64(row)
        if 2 * size <= rest:
            _by_rejection(taken, drawn, np.uint64(seed), np.uint64(step), draw)
        else:
            _from_the_rest(taken, rest, drawn, np.uint64(seed), np.uint64(step), draw)
        if size:
            weights[middle:end] = log(rest / size)
        starts[row + 1] = end
        _unmark(taken, out[starts[row] : end])
        _unmark(taken, targets[row])
    return starts, out[: starts[rows]], weights[: starts[rows]]
