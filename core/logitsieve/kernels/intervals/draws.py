"""log Z within a width, and the draws of sampling/gumbel.py, seed for seed, from few logits.

A draw is the id with the largest x_i / T + G_i. The bound of x_i gives the least noise that an id
needs to reach a guess of the winning value. Noise of blocks, then of ids, selects candidates; few
pass the fine codes and are computed. The guess, log Z estimated less g = GUESSED_BY_BOUNDS, is too
high once in e^(e^g) draws, and then lowered.
"""

from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, inline_once, kernel
from logitsieve.kernels.intervals.filters import (
    IN,
    IN_ROW,
    LEAST_OF_ALL,
    MIN_P,
    NO_ROW,
    OUT,
    OUT_ROW,
    TOP_P,
    UNDECIDED,
    below_of,
    draw_state_at,
    in_nucleus,
    is_out,
    sums_left,
    weigh_known,
)
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
    places_of,
    refine_batch,
)
from logitsieve.kernels.intervals.narrow import narrow_sums
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
from logitsieve.kernels.sampling.gumbel import SPARE, find_heaviest, list_candidates, noise_of
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.lanes import LANES, pair_sum, store, widen, zeros64
from logitsieve.kernels.simd.pointers import (
    as_float32,
    int64_pointer,
    keep_alive,
    nowhere,
    pointer,
    size_of,
)
from logitsieve.kernels.sketch.sketch import sketch_at
from logitsieve.kernels.topk.descriptor import ROWS, widen_hidden
from logitsieve.kernels.topk.merge import FIELDS
from logitsieve.kernels.topk.queries import CHUNK

GUESSED_BY_BOUNDS = 0.5  # nats from the first guess up to log Z
LOWERED = 1.0  # nats from a guess without a candidate to the next


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, float64, float64, float64, int64,"
    " int32[::1], int64[::1], int32[::1], float64[::1], int32[:,::1], float64[:,::1], int32[::1],"
    " boolean[::1], int64, int64)"
)
def interval_sample(
    address, hidden, seeds, step, inverse, top_p, min_p, width, first_id, places, offsets, edited,
    values, ids, log_z, scanned, answered, start, stop,
):  # fmt: skip
    """Fill ids [B, N] and log_z [B, 4] like `gumbel_sample`; `address` is the sketch's descriptor.

    Without filters log Z's bounds are at most `width` apart, finite if N is 0. scanned [B] counts
    logits computed. If answered[r] is False, row r needs all logits; its other outputs are unset.
    Row i of W is at places[i] of the sketch's order.
    """
    descriptor = int64_pointer(address)
    dim, bad = hidden.shape[1], -1
    measured = intervals_at(descriptor, nowhere(), pointer(places))
    scratch = np.empty(size_of(draw_state_at(descriptor, measured.end)), np.float64)
    intervals = intervals_at(descriptor, pointer(scratch), pointer(places))
    draws = draw_state_at(descriptor, intervals.end)
    for row in range(start, stop):
        h = row_of(pointer(hidden), row, dim)
        norm = widen_hidden(descriptor, h, intervals.wide)
        if norm < 0:
            bad = row
            break
        first, last = offsets[row], offsets[row + 1]
        answered[row] = begin(
            descriptor, intervals, h, norm, pointer(edited), pointer(values), first, last,
            below_of(inverse, min_p),
        )  # fmt: skip
        scale = scale_of(intervals, inverse)
        answered[row] &= scale.lift <= LIFTED
        if not answered[row]:
            continue
        if width < np.inf:
            answered[row], close = narrow_sums(descriptor, intervals, scale, width)
            if not answered[row]:
                continue
        if ids.shape[1] == 0:
            write_interval(scale, close, row_of(pointer(log_z), row, FIELDS))
            scanned[row] = min(int(intervals.state[COMPUTED]), descriptor[ROWS])
            continue
        draws.cut[IN], draws.cut[IN_ROW] = intervals.state[MOST], -1.0
        draws.cut[OUT], draws.cut[OUT_ROW] = -np.inf, 0.0
        draws.cut[MIN_P], draws.cut[TOP_P] = min_p, top_p
        if intervals.state[BELOW] > 0.0:
            remaining = weigh_known(intervals, scale, draws)
            sums = sum_known(descriptor, intervals, scale) if top_p < 1.0 else remaining
        else:
            sums = remaining = weigh(descriptor, intervals, scale, draws)
            for i in range(first, last):
                if values[i] == -np.inf:
                    draws.weights[edited[i]] = np.float32(0)
        if width < np.inf:
            sums = close
        draws.cut[LEAST_OF_ALL] = sums.low
        guess = log(remaining.estimate) - GUESSED_BY_BOUNDS
        find_heaviest(draws.weights, draws.size, draws.heaviest)
        for draw in range(ids.shape[1]):
            key = np.uint64(draw)
            winner = _draw(
                descriptor, intervals, scale, draws, first_id, guess, seeds[row], step, key
            )
            if winner < 0:
                answered[row] = False
                break
            ids[row, draw] = winner
        if top_p < 1.0 or min_p > 0.0:
            sums = sums_left(descriptor, intervals, scale, draws, sums, remaining)
        write_interval(scale, sums, row_of(pointer(log_z), row, FIELDS))
        scanned[row] = min(int(intervals.state[COMPUTED]), descriptor[ROWS])
    keep_alive((scratch, edited, values, places))
    return bad


@inline_once
def weigh(descriptor, intervals, scale, draws):
    order, sixteen, rows = sketch_at(descriptor).order, as_float32(draws.noise), descriptor[ROWS]
    estimates, lows, highs = zeros64(), zeros64(), zeros64()
    for row in range(rows, draws.size):
        draws.weights[row] = np.float32(0)
    for place in range(0, places_of(descriptor), LANES):
        estimate, low, high = exponentials_at(intervals, scale, place)
        estimates += widen(estimate)
        lows += widen(low)
        highs += widen(high)
        store(sixteen, 0, high)
        for lane in range(min(LANES, rows - place)):
            draws.weights[order[place + lane]] = sixteen[lane]
    for i in range(int(intervals.state[COUNT])):
        row = intervals.known[i]
        draws.weights[row] = np.float32(SPARE * exp(scaled_logit(intervals, scale, row)))
    size = places_of(descriptor)
    sums = sums_of(pair_sum(estimates), pair_sum(lows), pair_sum(highs), size)
    return with_known(intervals, known_sum(intervals, scale), sums)


@inline_once
def _draw(descriptor, intervals, scale, draws, first_id, guess, seed, step, draw):
    reached = guess
    while True:
        count = list_candidates(
            draws.weights, draws.heaviest, 1, draws.size, first_id, reached, seed, step, draw,
            draws.blocks, draws.ids,
        )  # fmt: skip
        for i in range(count):
            draws.noise[i] = noise_of(seed, step, draw, first_id + np.int64(draws.ids[i]))
        winner, best = best_candidate(descriptor, intervals, scale, draws, count, reached)
        if winner == NO_ROW:
            reached -= LOWERED
        elif best < reached:
            reached = best  # list every better row
        elif draws.cut[TOP_P] == 1.0:
            return winner
        else:
            decided = in_nucleus(descriptor, intervals, scale, draws, winner)
            if decided == UNDECIDED:
                return np.int64(UNDECIDED)
            if decided:
                return winner


@inline_once
def best_candidate(descriptor, intervals, scale, draws, count, reached):
    winner, best, likely, most = NO_ROW, -np.inf, -1, -np.inf
    for i in range(count):
        row = np.int64(draws.ids[i])
        if intervals.states[intervals.places[row]] == KNOWN:
            winner, best = _better(intervals, scale, draws, i, winner, best)
        else:
            estimate = float(intervals.estimates[intervals.places[row]])
            value = (estimate - intervals.state[MOST]) * scale.inverse + draws.noise[i]
            if value > most:
                likely, most = i, value
    if likely >= 0:  # the likeliest first, to rule out most others
        least = best
        winner, best = _compute_candidate(
            descriptor, intervals, scale, draws, likely, least, winner, best
        )
        least = max(best, reached)
        _refine_candidates(descriptor, intervals, scale, draws, count, least)
        for i in range(count):
            least = max(best, reached)
            winner, best = _compute_candidate(
                descriptor, intervals, scale, draws, i, least, winner, best
            )
    return winner, best


@inline
def _compute_candidate(descriptor, intervals, scale, draws, i, least, winner, best):
    if _bound_of(intervals, scale, draws, i) >= least:
        row = np.int64(draws.ids[i])
        compute(descriptor, intervals, row)
        draws.weights[row] = np.float32(SPARE * exp(scaled_logit(intervals, scale, row)))
        return _better(intervals, scale, draws, i, winner, best)
    return winner, best


@inline
def _bound_of(intervals, scale, draws, i):
    row = np.int64(draws.ids[i])
    scaled = (
        float(intervals.uppers[intervals.places[row]]) - intervals.state[MOST]
    ) * scale.inverse
    return scaled + draws.noise[i]


@inline_once
def _refine_candidates(descriptor, intervals, scale, draws, count, reached):
    batched = 0
    for i in range(count):
        place = intervals.places[draws.ids[i]]
        coarse = intervals.states[place] == COARSE
        if coarse and _bound_of(intervals, scale, draws, i) >= reached:
            intervals.batch[batched] = place
            batched += 1
        if batched == CHUNK or i == count - 1:
            refine_batch(descriptor, intervals, batched)
            for j in range(batched):
                upper = float(intervals.uppers[intervals.batch[j]])
                exponent = upper * scale.inverse - scale.top + scale.lift
                draws.weights[intervals.rows[j]] = np.float32(exp(min(exponent, LIFTED)))
            batched = 0


@inline
def _better(intervals, scale, draws, i, winner, best):
    row = np.int64(draws.ids[i])
    if is_out(intervals, scale, draws, row):
        return winner, best
    value = scaled_logit(intervals, scale, row) + draws.noise[i]
    if value > best or (value == best and (row < winner or winner == NO_ROW)):
        return row, value
    return winner, best
