"""log Z within a width, and the draws of sampling/gumbel.py, seed for seed, from few logits.

A draw is the id with the largest x_i / T + G_i, G_i being its noise. A bound of x_i gives the least
noise by which an id can reach a guess of what wins: noise of blocks, then of ids, finds those that
do, few of which are left by their fine codes, and computed. Where the best of them is below the
guess, it is lowered. The guess is the logarithm of an estimate of Z, less GUESSED: the best is
below it once in e^(e^GUESSED).

With top-p and min-p an id is drawn among those that they leave: the best of the ids found is
looked at, then the next. Whether one is in the nucleus is decided by sums of what is before it and
of what is not; every answer decides for all better ids, or for all others.

Shape letters: B batch rows, D hidden size, V vocabulary, N draws, E edits of all rows.
"""

from __future__ import annotations

from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, kernel, splice
from logitsieve.kernels.intervals.intervals import (
    BELOW,
    COARSE,
    COMPUTED,
    COUNT,
    KNOWN,
    MOST,
    begin,
    compute,
    intervals_at,
    intervals_room,
    places_of,
    refine_listed,
)
from logitsieve.kernels.intervals.narrow import narrow_sums
from logitsieve.kernels.intervals.nucleus import (
    IN,
    IN_ROW,
    MIN_P,
    NOBODY,
    OUT,
    OUT_ROW,
    TOP_P,
    UNDECIDED,
    below_of,
    in_nucleus,
    is_out,
    race_at,
    race_room,
    sums_left,
    weigh_known,
)
from logitsieve.kernels.intervals.sums import (
    LIFTED,
    exponentials_at,
    known_sum,
    scale_of,
    scaled_logit,
    sum_known,
    sums_of,
    with_known,
    write_interval,
)
from logitsieve.kernels.sampling.gumbel import (
    SPARE,
    find_heaviest,
    list_candidates,
    noise_of,
)
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.lanes import (
    LANES,
    multiply_add,
    pair_sum,
    splat64,
    store,
    widen,
    zeros64,
)
from logitsieve.kernels.simd.pointers import (
    as_float32,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
)
from logitsieve.kernels.sketch.sketch import sketch_at
from logitsieve.kernels.topk.descriptor import ROWS, widen_hidden
from logitsieve.kernels.topk.merge import FIELDS
from logitsieve.kernels.topk.queries import CHUNK

# Nats that the guess is below log Z, and that it is lowered by where no candidate is found.
GUESSED_BY_BOUNDS, LOWERED = 0.5, 1.0


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, float64, float64, float64, int64,"
    " int32[::1], int64[::1], int32[::1], float64[::1], int32[:,::1], float64[:,::1], int32[::1],"
    " boolean[::1], int64, int64)"
)
def interval_sample(
    address, hidden, seeds, step, inverse, top_p, min_p, width, first_id, places, offsets, edited,
    values, ids, log_z, scanned, found, start, stop,
):  # fmt: skip
    """Fill ids [B, N] for rows start .. stop-1 of hidden [B, D], at a temperature of 1 / inverse.

    log_z [B, 4] is an estimate of log Z and two numbers that it is proven to lie between, of what
    filters leave; without filters these are at most `width` apart, which is finite if N is 0.
    scanned [B] counts logits computed. If found[r] is False, compute all logits of the row instead:
    nothing else is written. Row i of W stands at places[i] of the sketch's order. `address` is that
    of the sketch's descriptor, other arguments are those of `gumbel_sample`. Returns -1, or the
    first row that is not finite or too large.
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
            below_of(inverse, min_p),
        )  # fmt: skip
        scale = scale_of(intervals, inverse)
        found[row] &= scale.lift <= LIFTED
        if not found[row]:
            continue
        if width < np.inf:
            found[row], close = narrow_sums(descriptor, intervals, scale, width)
            if not found[row]:
                continue
        if ids.shape[1] == 0:
            write_interval(scale, close, row_of(pointer(log_z), row, FIELDS))
            scanned[row] = min(int(intervals.state[COMPUTED]), descriptor[ROWS])
            continue
        race.cut[IN], race.cut[IN_ROW] = intervals.state[MOST], -1.0
        race.cut[OUT], race.cut[OUT_ROW] = -np.inf, 0.0
        race.cut[MIN_P], race.cut[TOP_P] = min_p, top_p
        if intervals.state[BELOW] > 0.0:
            kept = weigh_known(intervals, scale, race)
            sums = sum_known(descriptor, intervals, scale) if top_p < 1.0 else kept
        else:
            sums = kept = weigh(descriptor, intervals, scale, race)
            for i in range(first, last):
                if values[i] == -np.inf:
                    race.weights[edited[i]] = np.float32(0)
        if width < np.inf:
            sums = close
        guess = log(kept.estimate) - GUESSED_BY_BOUNDS
        find_heaviest(race.weights, race.size, race.heaviest)
        for draw in range(ids.shape[1]):
            key = np.uint64(draw)
            winner = _draw(
                descriptor, intervals, scale, race, first_id, guess, seeds[row], step, key
            )
            if winner < 0:
                found[row] = False
                break
            ids[row, draw] = winner
        if top_p < 1.0 or min_p > 0.0:
            sums = sums_left(descriptor, intervals, scale, race, sums, kept)
        write_interval(scale, sums, row_of(pointer(log_z), row, FIELDS))
        scanned[row] = min(int(intervals.state[COMPUTED]), descriptor[ROWS])
    keep_alive(scratch)
    keep_alive(edited)
    keep_alive(values)
    keep_alive(places)
    return bad


@splice
def weigh(descriptor, intervals, scale, race):
    """A weight for each row, by its upper bound or its logit; sums by the bounds of each."""
    order, sixteen, rows = sketch_at(descriptor).order, as_float32(race.noise), descriptor[ROWS]
    estimates, lows, highs, one = zeros64(), zeros64(), zeros64(), splat64(1.0)
    for row in range(rows, race.size):
        race.weights[row] = np.float32(0)
    for place in range(0, places_of(descriptor), LANES):
        estimate, low, high = exponentials_at(intervals, scale, place)
        estimates = multiply_add(widen(estimate), one, estimates)
        lows = multiply_add(widen(low), one, lows)
        highs = multiply_add(widen(high), one, highs)
        store(sixteen, 0, high)
        for lane in range(min(LANES, rows - place)):
            race.weights[order[place + lane]] = sixteen[lane]
    for i in range(int(intervals.state[COUNT])):
        row = intervals.known[i]
        race.weights[row] = np.float32(SPARE * exp(scaled_logit(intervals, scale, row)))
    size = places_of(descriptor)
    sums = sums_of(pair_sum(estimates), pair_sum(lows), pair_sum(highs), size)
    return with_known(intervals, known_sum(intervals, scale), sums)


@splice
def _draw(descriptor, intervals, scale, race, first_id, guess, seed, step, draw):
    """The row that a draw takes, or UNDECIDED."""
    reached = guess
    while True:
        count = list_candidates(
            race.weights, race.heaviest, race.size, first_id, reached, seed, step, draw,
            race.blocks, race.ids,
        )  # fmt: skip
        for i in range(count):
            race.noise[i] = noise_of(seed, step, draw, first_id + np.int64(race.ids[i]))
        winner, best = best_candidate(descriptor, intervals, scale, race, count, reached)
        if winner == NOBODY:
            reached -= LOWERED
        elif best < reached:
            reached = best  # whatever is better is listed next
        elif race.cut[TOP_P] == 1.0:
            return winner
        else:
            decided = in_nucleus(descriptor, intervals, scale, race, winner)
            if decided == UNDECIDED:
                return np.int64(UNDECIDED)
            if decided:
                return winner


@splice
def best_candidate(descriptor, intervals, scale, race, count, reached):
    """(The best of the candidates that filters leave, its perturbed logit), or (NOBODY, -inf).

    It is the best if it is above `reached`, and else one of them.
    """
    winner, best, likely, most = NOBODY, -np.inf, -1, -np.inf
    for i in range(count):
        row = np.int64(race.ids[i])
        if intervals.states[intervals.places[row]] == KNOWN:
            winner, best = _better(intervals, scale, race, i, winner, best)
        else:
            estimate = float(intervals.estimates[intervals.places[row]])
            value = (estimate - intervals.state[MOST]) * scale.inverse + race.noise[i]
            if value > most:
                likely, most = i, value
    if likely >= 0:  # the likeliest first: few others may be better
        least = best
        winner, best = _compute_candidate(
            descriptor, intervals, scale, race, likely, least, winner, best
        )
        least = max(best, reached)
        _refine_candidates(descriptor, intervals, scale, race, count, least)
        for i in range(count):
            least = max(best, reached)
            winner, best = _compute_candidate(
                descriptor, intervals, scale, race, i, least, winner, best
            )
    return winner, best


@inline
def _compute_candidate(descriptor, intervals, scale, race, i, least, winner, best):
    """(The winner, its perturbed logit), after a candidate whose bound is `least` or more."""
    if _bound_of(intervals, scale, race, i) >= least:
        compute_weight(descriptor, intervals, scale, race, np.int64(race.ids[i]))
        return _better(intervals, scale, race, i, winner, best)
    return winner, best


@inline
def _bound_of(intervals, scale, race, i):
    """An upper bound of a candidate's perturbed logit; -inf if that is known.

    It is computed as the perturbed logit is, and rounding keeps order.
    """
    row = np.int64(race.ids[i])
    apart = (float(intervals.uppers[intervals.places[row]]) - intervals.state[MOST]) * scale.inverse
    return apart + race.noise[i]


@splice
def _refine_candidates(descriptor, intervals, scale, race, count, reached):
    """Narrow the intervals of candidates that may be above `reached`, by their fine codes."""
    listed = 0
    for i in range(count):
        place = intervals.places[race.ids[i]]
        coarse = intervals.states[place] == COARSE
        if coarse and _bound_of(intervals, scale, race, i) >= reached:
            intervals.listed[listed] = place
            listed += 1
        if listed == CHUNK or i == count - 1:
            refine_listed(descriptor, intervals, listed)
            for j in range(listed):
                upper = float(intervals.uppers[intervals.listed[j]])
                exponent = upper * scale.inverse - scale.top + scale.lift
                race.weights[intervals.rows[j]] = np.float32(exp(min(exponent, LIFTED)))
            listed = 0


@inline
def compute_weight(descriptor, intervals, scale, race, row):
    compute(descriptor, intervals, row)
    race.weights[row] = np.float32(SPARE * exp(scaled_logit(intervals, scale, row)))


@inline
def _better(intervals, scale, race, i, winner, best):
    """(The better of a known candidate and the winner so far, its perturbed logit)."""
    row = np.int64(race.ids[i])
    if is_out(intervals, scale, race, row):
        return winner, best
    value = scaled_logit(intervals, scale, row) + race.noise[i]
    if value > best or (value == best and (row < winner or winner == NOBODY)):
        return row, value
    return winner, best
