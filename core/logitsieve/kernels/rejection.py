"""Draws from the whole softmax by rejection under proven bounds.

Every row i has a weight R_i >= e^{x_i / T} (envelope.py). A row is drawn with probability
R_i / sum R and accepted with probability e^{x_i / T} / R_i; else its weight falls to what was
learnt about it, and another is drawn. Whatever was tried before, the row that a trial accepts has
the softmax's probabilities: draws are exact however the weights came to be, and what one draw
learns the next ones use. U / Z trials are expected at most, U being the sum of the weights at
first, and there are never more than two for each row.

Shape letters: B batch rows, D hidden size, V vocabulary, N draws, E edits of all rows.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import kernel, splice
from logitsieve.kernels.dots import row_of, widen_row
from logitsieve.kernels.envelope import (
    COARSE,
    EXACT,
    FAILED,
    FINE,
    compute,
    envelope_at,
    envelope_room,
    fine_weight,
    places_of,
    row_at,
    tighten_all,
    weigh_all,
    write_log_z,
)
from logitsieve.kernels.philox import TRIALS, random_bits, uniform
from logitsieve.kernels.pointers import int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.record import ROWS, admissible
from logitsieve.kernels.tally import find_share, tally_again, whole
from logitsieve.types.results import Float32, Float64, Int32, Int64

# A row's trials that fail before all bounds are made fine ones, as a share of V: those trials have
# cost about as much as that does. It depends on what was drawn, not on what is still asked for.
PATIENCE = 32


@kernel(
    "(int64, float32[:,::1], uint64[::1], uint64, float64, boolean, int64[::1], int32[::1],"
    " float64[::1], int32[:,::1], float64[:,::1], int32[::1], int64, int64)"
)
def envelope_sample(
    address: int,
    hidden: Float32,
    seeds: np.ndarray,
    step: int,
    inverse: float,
    fine: bool,
    offsets: Int64,
    places: Int32,
    values: Float64,
    ids: Int32,
    log_z: Float64,
    scanned: Int32,
    start: int,
    stop: int,
) -> int:
    """Fill ids [B, N] for rows start .. stop-1 of hidden [B, D], at a temperature of 1 / inverse.

    Bounds are those of the fine codes of all rows, if `fine`, and places are rows of W then, else
    of the sketch's order. The logits at places[offsets[r] : offsets[r+1]] are `values` [E] instead,
    -inf for what must not be drawn. log_z [B, 3] is an estimate of the logarithm of the sum of all
    e^{x / T}, and the two numbers it is proven to lie between. scanned [B] counts exact logits, V
    at most. `address` is the sketch's record's. Returns -1, or the first row that is not finite, or
    too large.
    """
    record = int64_pointer(address)
    dim = hidden.shape[1]
    size = places_of(record)
    scratch, states = np.empty(envelope_room(record, size), np.float64), np.empty(size, np.uint8)
    envelope = envelope_at(record, pointer(scratch), pointer(states), size, fine)
    bad = -1
    for row in range(start, stop):
        h = row_of(pointer(hidden), row, dim)
        norm = np.sqrt(widen_row(h, envelope.wide, dim))
        if not admissible(record, 0, norm):
            bad = row
            break
        edited, instead = shift(pointer(places), offsets[row]), shift(pointer(values), offsets[row])
        count = offsets[row + 1] - offsets[row]
        level, found = weigh_all(record, envelope, h, norm, inverse, edited, instead, count)
        write_log_z(envelope, level, shift(pointer(log_z), 3 * row))
        envelope.sums[FAILED] = 0.0
        for draw in range(ids.shape[1]):
            key = np.uint64(draw) | TRIALS
            place, computed = _draw(record, envelope, level, seeds[row], step, key)
            ids[row, draw] = row_at(record, envelope, place)
            found += computed
        scanned[row] = min(found, record[ROWS])
    keep_alive(scratch)
    keep_alive(states)
    return bad


@splice
def _draw(record, envelope, level, seed, step, draw):
    """(The place that is drawn, rows computed). Every trial that fails lowers a weight."""
    tally, found, trial = envelope.tally, 0, np.uint64(0)
    while True:
        where, whether = random_bits(seed, step, draw, trial)
        trial += np.uint64(1)
        place = find_share(tally, uniform(where) * whole(tally))
        if envelope.states[place] == EXACT:
            if tally.weights[place] > 0:
                return place, found
            continue
        reached = uniform(whether) * tally.weights[place]
        if envelope.states[place] == COARSE:
            weight = np.float32(fine_weight(record, envelope, level, place))
            envelope.states[place] = FINE
            if weight < tally.weights[place]:
                tally.weights[place] = weight
                if reached >= weight:
                    tally_again(tally, place)
                    envelope.sums[FAILED] += 1.0
                    if envelope.sums[FAILED] == record[ROWS] // PATIENCE:
                        tighten_all(record, envelope, level)
                    continue
        weight = compute(record, envelope, level, place)
        found += 1
        tally_again(tally, place)
        if reached < weight:
            return place, found
