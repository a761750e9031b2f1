"""The draws of gumbel.py, seed for seed, where the rows of W are in several shards.

All shards measure from the largest logit of all: so a perturbed logit has the same bits in a shard
as in the whole, and the largest over the shards wins. What top-p and min-p leave is decided in one
place, by the logits of the few ids that may remain.

Shape letters: B batch rows, D hidden size, V vocabulary, N draws, E edits of all rows, L ids of all
lists.
"""

from __future__ import annotations

from math import exp

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.gumbel import (
    SPARE,
    Race,
    best_of,
    fill_weights,
    find_heaviest,
    keep,
    list_candidates,
    may_be_within,
    noise_of,
    weight_of,
)
from logitsieve.kernels.sampling.log_z import fill_logits64, write_log_z
from logitsieve.kernels.sampling.race_rooms import race_room, rooms_at, widen_rows
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.lanes import LANES, load, pair_sum, store, zeros64
from logitsieve.kernels.simd.pointers import (
    as_float32,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
)
from logitsieve.kernels.topk.descriptor import matrix_at, tile_room
from logitsieve.kernels.topk.merge import FIELDS
from logitsieve.kernels.topk.queries import at_once

# Of `carried`, after the lanes of a sum of weights: 1 once the best id was met, whose weight is not
# added; and the sum of the lanes.
MET, OTHERS = LANES, LANES + 1
CARRIED = LANES + 2
LEAST_VALUE = -4.0  # no winner's perturbed logit is as low (gumbel.py)


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, int64[::1], int32[::1], float64[::1],"
    " int64, float64[::1], float64[::1], float64[:,::1], int32[:,::1], float64[:,::1],"
    " float64[:,::1], int64, int64)"
)
def gumbel_race(
    address, hidden, seeds, step, inverse, offsets, edited, values, before, tops, guesses, carried,
    ids, reached, log_z, start, stop,
):  # fmt: skip
    """Go on with the draws of rows start .. stop-1 of hidden, by a shard with `before` rows ahead.

    reached [B, N] are the largest perturbed logits so far, -inf of none, and `ids` whose they are;
    both are replaced where the shard has a larger one. tops [B] are the largest logits of all
    shards, after edits, and guesses [B] what a winner may reach. `carried` [B, CARRIED] is what the
    ids of shards before weigh, zeros for none, and then with this shard's; log_z [B, 4] is that of
    all of them. Arguments are those of `gumbel_sample` otherwise.
    """
    descriptor = int64_pointer(address)
    matrix, dim = matrix_at(descriptor, 0), hidden.shape[1]
    size = padded(matrix.rows)
    block = at_once(stop - start, padded(dim) + size)
    scratch = np.empty(race_room(block, dim, size), np.float64)
    room = np.empty(tile_room(matrix), np.float32)
    rooms, bad = rooms_at(pointer(scratch), block, dim, size), -1
    for first in range(start, stop, block):
        count = min(block, stop - first)
        bad = widen_rows(descriptor, row_of(pointer(hidden), first, dim), rooms.wide, count)
        if bad >= 0:
            bad += first
            break
        fill_logits64(matrix, pointer(room), rooms.wide, count, 0, matrix.rows, rooms.logits, size)
        for q in range(count):
            row, logits = first + q, row_of(rooms.logits, q, size)
            for i in range(offsets[row], offsets[row + 1]):
                logits[edited[i]] = values[i]
            best = best_of(logits, matrix.rows, size)
            race = Race(logits, *rooms[2:], matrix.rows, size, best, tops[row], inverse)
            sums = row_of(pointer(carried), row, CARRIED)
            _add_weights(race, sums)
            rows_so_far, fields = before + matrix.rows, row_of(pointer(log_z), row, FIELDS)
            write_log_z(tops[row], sums[OTHERS], rows_so_far, rows_so_far, fields)
            find_heaviest(race.drawn, size, race.heaviest)
            for draw in range(ids.shape[1]):
                winner, value = _beat(
                    race, before, guesses[row], reached[row, draw], seeds[row], step,
                    np.uint64(draw),
                )  # fmt: skip
                if winner >= 0:
                    ids[row, draw], reached[row, draw] = before + winner, value
    keep_alive(scratch)
    keep_alive(room)
    return bad


@inline
def _add_weights(race, sums):
    """Fill the weights and add them to the sums of the shards before, but for that of the best."""
    meets = sums[MET] == 0.0 and race.logits[race.best] == race.most
    if meets:
        race.logits[race.best], sums[MET] = -np.inf, 1.0
    total = fill_weights(race, load(sums, 0))
    store(sums, 0, total)
    sums[OTHERS] = pair_sum(total)
    if meets:
        race.logits[race.best], race.weights[race.best] = race.most, 1.0
    for i in range(race.size):
        race.drawn[i] = np.float32(race.weights[i])


@inline
def _beat(race, before, guess, reached, seed, step, draw):
    """(The row that wins a draw, its perturbed logit), or (-1, ...) if that is not above `reached`.

    Of equal ones the lower id wins, so that of an earlier shard.
    """
    place, most = -1, max(reached, LEAST_VALUE)
    reached = max(guess, most)
    while True:
        count = list_candidates(
            race.drawn, race.heaviest, race.size, before, reached, seed, step, draw,
            race.blocks, race.listed,
        )  # fmt: skip
        for j in range(count):
            i = race.listed[j]
            value = (race.logits[i] - race.most) * race.inverse
            value += noise_of(seed, step, draw, before + i)
            if value > most or (value == most and i < place):
                place, most = i, value
        if most >= reached:
            return place, most
        reached = most


@kernel(
    "(int64[::1], int32[::1], float64[::1], float64[::1], int64, uint64[::1], uint64, float64,"
    " float64, float64, int32[:,::1], float64[:,::1])"
)
def filtered_sample(
    offsets, listed, logits, totals, rows, seeds, step, inverse, top_p, min_p, ids, log_z
):
    """Fill ids [B, N] and log_z [B, 4] as `gumbel_sample` with filters, from lists of ids.

    Row r's are listed[offsets[r] : offsets[r+1]], rising, with their `logits` [L]: the best id, and
    all others that filters may leave of the V = `rows` ids, which weigh totals [B].
    """
    longest = 0
    for row in range(ids.shape[0]):
        longest = max(longest, offsets[row + 1] - offsets[row])
    room = padded(longest)
    scratch, places = np.empty(2 * room, np.float64), np.empty(room + LANES, np.int32)
    own = pointer(scratch)
    weights, floats = shift(own, room), as_float32(own)  # the latter are not read
    for row in range(ids.shape[0]):
        first, count = offsets[row], offsets[row + 1] - offsets[row]
        for i in range(count):
            own[i] = logits[first + i]
        size = padded(count)
        best = best_of(own, count, size)
        race = Race(
            own, weights, floats, floats, pointer(places), pointer(places), rows, size, best,
            own[best], inverse,
        )  # fmt: skip
        fill_weights(race, zeros64())
        weights[best] = 1.0
        kept = keep(race, totals[row], top_p, min_p)
        fields = row_of(pointer(log_z), row, FIELDS)
        write_log_z(race.most, weight_of(race, kept), kept, kept, fields)
        named = shift(pointer(listed), first)
        for draw in range(ids.shape[1]):
            place = _winner(race, named, kept, seeds[row], step, np.uint64(draw))
            ids[row, draw] = named[place]
    keep_alive(scratch)
    keep_alive(places)


@inline
def _winner(race, ids, kept, seed, step, draw):
    """The place in a list of the id that wins a draw among those that are kept."""
    place, most = race.best, noise_of(seed, step, draw, np.int64(ids[race.best]))
    reach = SPARE * exp(-most)
    for j in range(kept):
        i = race.listed[j]
        one = np.int64(ids[i])
        if i != race.best and may_be_within(race.weights[i] * reach, seed, step, draw, one):
            value = (race.logits[i] - race.most) * race.inverse + noise_of(seed, step, draw, one)
            if value > most or (value == most and i < place):
                place, most = i, value
                reach = SPARE * exp(-most)
    return place
