"""Draws from the whole softmax by rejection under proven bounds.

Every row i has a weight R_i >= e^{x_i / T} (envelope.py). A row is drawn with probability
R_i / sum R and accepted with probability e^{x_i / T} / R_i; else its weight falls to what was
learnt about it, and another is drawn. Whatever was tried before, the row that a trial accepts has
the softmax's probabilities: draws are exact however the weights came to be, and what one draw
learns the next ones use. U / Z trials are expected at most, U being the sum of the weights at
first.

Trials are drawn several at once from the same weights, the more the more have failed: one that
follows does not wait for the sums, and their rows are fetched together. They are settled in turn,
each by the weight that it was drawn with, so that the first accepted has the same law.

Shape letters: B batch rows, D hidden size, V vocabulary, N draws, E edits of all rows.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import kernel, splice
from logitsieve.kernels.sampling.envelope import (
    COARSE,
    EXACT,
    FAILED,
    FINE,
    compute,
    envelope_at,
    envelope_room,
    fine_weight,
    places_of,
    refine_listed,
    row_at,
    tighten_all,
    weigh_all,
    write_log_z,
)
from logitsieve.kernels.sampling.philox import TRIALS, random_bits, uniform
from logitsieve.kernels.sampling.weight_tree import find_share, sum_again, total_weight
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.descriptor import ROWS, widen_hidden

AT_ONCE = 16  # trials that are looked up together, at most

# A row's trials that fail before all bounds are made fine ones, as a share of V: those trials have
# cost about as much as that does. It depends on the draws so far, not on those still to come.
PATIENCE = 32


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, boolean, int64[::1], int32[::1],"
    " float64[::1], int32[:,::1], float64[:,::1], int32[::1], int64, int64)"
)
def envelope_sample(
    address,
    hidden,
    seeds,
    step,
    inverse,
    fine,
    offsets,
    places,
    values,
    ids,
    log_z,
    scanned,
    start,
    stop,
):
    """Fill ids [B, N] for rows start .. stop-1 of hidden [B, D], at a temperature of 1 / inverse.

    Bounds are those of the fine codes of all rows, if `fine`, and places are rows of W then, else
    of the sketch's order. The logits at places[offsets[r] : offsets[r+1]] are `values` [E] instead,
    -inf for what must not be drawn. log_z [B, 3] is an estimate of the logarithm of the sum of all
    e^{x / T}, and the two numbers it is proven to lie between. scanned [B] counts exact logits, V
    at most. `address` is that of the sketch's descriptor. Returns -1, or the first row that is not
    finite or too large.
    """
    descriptor = int64_pointer(address)
    dim = hidden.shape[1]
    size = places_of(descriptor)
    scratch, states = (
        np.empty(envelope_room(descriptor, size), np.float64),
        np.empty(size, np.uint8),
    )
    envelope = envelope_at(descriptor, pointer(scratch), pointer(states), size, fine)
    bad = -1
    for row in range(start, stop):
        h = row_of(pointer(hidden), row, dim)
        norm = widen_hidden(descriptor, h, envelope.wide)
        if norm < 0:
            bad = row
            break
        edited, instead = shift(pointer(places), offsets[row]), shift(pointer(values), offsets[row])
        count = offsets[row + 1] - offsets[row]
        scale, rows_computed = weigh_all(
            descriptor, envelope, h, norm, inverse, edited, instead, count
        )
        write_log_z(envelope, scale, shift(pointer(log_z), 3 * row))
        envelope.sums[FAILED] = 0.0
        for draw in range(ids.shape[1]):
            key = np.uint64(draw) | TRIALS
            place, computed = _draw(descriptor, envelope, scale, seeds[row], step, key)
            ids[row, draw] = row_at(descriptor, envelope, place)
            rows_computed += computed
        scanned[row] = min(rows_computed, descriptor[ROWS])
    keep_alive(scratch)
    keep_alive(states)
    return bad


@splice
def _draw(descriptor, envelope, scale, seed, step, draw):
    """(The place drawn, rows computed). Every trial that fails lowers a weight."""
    rows_computed, trial, count = 0, np.uint64(0), 1
    while True:
        _draw_trials(descriptor, envelope, seed, step, draw, trial, count)
        for i in range(count):
            place, computed = envelope.places[i], _decide_trial(descriptor, envelope, scale, i)
            rows_computed += computed
            if envelope.reached[i] < envelope.tree.weights[place]:
                return place, rows_computed
        if envelope.sums[FAILED] >= descriptor[ROWS] // PATIENCE:
            tighten_all(descriptor, envelope, scale)
            envelope.sums[FAILED] = -np.inf
        trial += np.uint64(count)
        count = min(2 * count, AT_ONCE)


@splice
def _draw_trials(descriptor, envelope, seed, step, draw, trial, count):
    """Fill places[:count], the share of each weight that the trial reaches, and fine bounds."""
    tree, coarse = envelope.tree, False
    total = total_weight(tree)
    for i in range(count):
        where, whether = random_bits(seed, step, draw, trial + np.uint64(i))
        place = find_share(tree, uniform(where) * total)
        envelope.places[i] = place
        envelope.reached[i] = uniform(whether) * tree.weights[place]
        coarse |= envelope.states[place] == COARSE
    if coarse:
        refine_listed(descriptor, envelope, count)


@splice
def _decide_trial(descriptor, envelope, scale, i):
    """Lower the weight of trial i until it is exact or below what the trial reached.

    Returns the number of rows computed.
    """
    place, weights, computed = envelope.places[i], envelope.tree.weights, 0
    if envelope.states[place] == EXACT:
        return computed
    before, reached = weights[place], envelope.reached[i]
    if envelope.states[place] == COARSE:
        weights[place] = min(before, np.float32(fine_weight(envelope, scale, i)))
        envelope.states[place] = FINE
    if reached < weights[place]:
        compute(descriptor, envelope, scale, place)
        computed = 1
    else:
        envelope.sums[FAILED] += 1.0
    if weights[place] < before:
        sum_again(envelope.tree, place)
    return computed
