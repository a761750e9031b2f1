"""The draws of draws.py where the rows of W are in several shards, each with a sketch of its rows.

As in sampling/shard_gumbel.py, logits are taken from the largest of all shards.

Shape letters: B batch rows, D hidden size, V vocabulary, N draws, E edits of all rows.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import kernel, splice
from logitsieve.kernels.intervals.draws import LOWERED, best_candidate, weigh
from logitsieve.kernels.intervals.intervals import (
    COMPUTED,
    begin,
    intervals_at,
    intervals_room,
)
from logitsieve.kernels.intervals.nucleus import (
    IN,
    IN_ROW,
    MIN_P,
    NOBODY,
    OUT,
    OUT_ROW,
    TOP_P,
    race_at,
    race_room,
)
from logitsieve.kernels.intervals.sums import LIFTED, scale_of
from logitsieve.kernels.sampling.gumbel import find_heaviest, list_candidates, noise_of
from logitsieve.kernels.sampling.shard_gumbel import LEAST_VALUE
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.descriptor import ROWS, widen_hidden


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, int32[::1], int64[::1], int32[::1],"
    " float64[::1], int64, float64[::1], float64[::1], int32[:,::1], float64[:,::1], int32[::1],"
    " boolean[::1], int64, int64)"
)
def interval_race(
    address, hidden, seeds, step, inverse, places, offsets, edited, values, before, tops, guesses,
    ids, reached, scanned, found, start, stop,
):  # fmt: skip
    """`gumbel_race` of sampling/shard_gumbel.py, by the bounds of a shard and few of its logits.

    Where found [B] is False the shard's sketch says too little, and ids and reached are as before.
    scanned [B] counts logits computed. `places` and `address` are those of `interval_sample`.
    """
    descriptor = int64_pointer(address)
    dim, bad = hidden.shape[1], -1
    scratch = np.empty(intervals_room(descriptor) + race_room(descriptor), np.float64)
    intervals = intervals_at(descriptor, pointer(scratch), pointer(places))
    race = race_at(descriptor, shift(pointer(scratch), intervals_room(descriptor)))
    for row in range(start, stop):
        h = row_of(pointer(hidden), row, dim)
        norm = widen_hidden(descriptor, h, intervals.wide)
        if norm < 0:
            bad = row
            break
        first, last = offsets[row], offsets[row + 1]
        found[row] = begin(
            descriptor, intervals, h, norm, pointer(edited), pointer(values), first, last,
            tops[row],  # from which all shards measure
        )  # fmt: skip
        scale = scale_of(intervals, inverse)
        found[row] &= scale.lift <= LIFTED
        if not found[row]:
            continue
        weigh(descriptor, intervals, scale, race)
        for i in range(first, last):
            if values[i] == -np.inf:
                race.weights[edited[i]] = np.float32(0)
        race.cut[IN], race.cut[IN_ROW] = np.inf, 0.0
        race.cut[OUT], race.cut[OUT_ROW] = -np.inf, 0.0
        race.cut[MIN_P], race.cut[TOP_P] = 0.0, 1.0
        find_heaviest(race.weights, race.size, race.heaviest)
        for draw in range(ids.shape[1]):
            winner, value = _beat(
                descriptor, intervals, scale, race, before, guesses[row], reached[row, draw],
                seeds[row], step, np.uint64(draw),
            )  # fmt: skip
            if winner != NOBODY:
                ids[row, draw], reached[row, draw] = before + winner, value
        scanned[row] = min(int(intervals.state[COMPUTED]), descriptor[ROWS])
    keep_alive(scratch)
    keep_alive(edited)
    keep_alive(values)
    keep_alive(places)
    return bad


@splice
def _beat(descriptor, intervals, scale, race, before, guess, reached, seed, step, draw):
    """(The row that wins a draw, its perturbed logit), or NOBODY if that is not above `reached`."""
    least = max(reached, LEAST_VALUE)
    aim = max(guess, least)
    while True:
        count = list_candidates(
            race.weights, race.heaviest, race.size, before, aim, seed, step, draw, race.blocks,
            race.ids,
        )  # fmt: skip
        for i in range(count):
            race.noise[i] = noise_of(seed, step, draw, before + np.int64(race.ids[i]))
        winner, best = best_candidate(descriptor, intervals, scale, race, count, aim)
        if winner != NOBODY and best >= aim:
            return (winner, best) if best > least else (NOBODY, best)
        if aim == least:
            return NOBODY, best
        aim = max(least, best if winner != NOBODY else aim - LOWERED)
