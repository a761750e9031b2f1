"""Intervals of all logits of a row of hidden, narrowed on demand, by a sketch without levels.

Intervals come from the coarse codes, then from the fine ones. The row with the largest logit always
is known. S places are V up to a multiple of 16.
"""

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.simd.dots import padded
from logitsieve.kernels.simd.lanes import (
    LANES,
    largest_of,
    load,
    magnitude,
    multiply_add,
    splat32,
    store,
)
from logitsieve.kernels.simd.masks import append_lanes, lanes_not_below, lowest_bit
from logitsieve.kernels.simd.pointers import as_float32, as_int32, as_uint8, shift
from logitsieve.kernels.sketch.bounds import bound_four, refine_places
from logitsieve.kernels.sketch.encode_query import MARGIN, coarse_factors, coded_at, encode_query
from logitsieve.kernels.sketch.levels import FOUR
from logitsieve.kernels.sketch.sketch import sketch_at
from logitsieve.kernels.sketch.thresholds import LOWEST, SPARE
from logitsieve.kernels.topk.descriptor import DIM, ROWS, exact_logit, matrix_at
from logitsieve.kernels.topk.queries import CHUNK

COARSE, FINE, KNOWN = 0, 1, 2
BATCH = CHUNK + LANES  # rows refined together, and up to a vector more
PATIENCE = 3  # beyond V / PATIENCE computed logits, all of W takes less time
NEAR = 64  # beyond V / NEAR and a chunk, only the largest logit is searched

# Proven to be enough by proofs/intervals.py.
MARGIN_SPARE = 1 + 1e-6  # of a margin, for rounding it to float32
BOUND_SPARE = 2.0**-21  # of a bound, for adding the margin

# Of `state`: known finite logits, the largest, logits computed, rows refined, and the distance
# below the largest within which all are known.
COUNT, MOST, COMPUTED, REFINED, BELOW = range(5)
STATE = 8

# Pointers: the row of hidden in float64, its codes; float32 [S] estimates, upper bounds (-inf for
# known rows) and scratch `gaps`; uint8 states [S]; float64 logits [V] of known rows, ids of finite
# ones; the float64 state; places of rows [V]; places and ids of rows to refine.
Intervals = namedtuple(
    "Intervals", "wide coded estimates uppers gaps states logits known state places batch rows end"
)


@inline
def few_of(descriptor):
    return descriptor[ROWS] // NEAR + CHUNK


@inline
def places_of(descriptor):
    return sketch_at(descriptor).groups * LANES


@inline
def intervals_at(descriptor, start, place_of):
    size = places_of(descriptor)
    coded = coded_at(descriptor, shift(start, padded(descriptor[DIM])))
    state = shift(coded.end, size)
    floats = as_float32(shift(state, STATE))
    known = as_int32(shift(floats, 3 * size))
    batch = shift(known, size)
    rows = shift(batch, BATCH)
    return Intervals(
        start, coded, floats, shift(floats, size), shift(floats, 2 * size),
        as_uint8(shift(rows, BATCH)), coded.end, known, state, place_of, batch, rows,
        shift(state, STATE + 2 * size + BATCH + size // 8),
    )  # fmt: skip


@inline_once
def bound_all(descriptor, intervals, h, norm):
    """Bound all rows for a row of hidden with that norm, already widened."""
    encode_query(descriptor, h, norm, intervals.coded)
    sketch, margin = sketch_at(descriptor), margin_of(intervals)
    query, uppers = coarse_factors(intervals.coded.factors), intervals.uppers
    for four in range(0, sketch.groups, FOUR):
        bound_four(
            sketch, intervals.coded.planes, query, four, sketch.groups, intervals.estimates, uppers
        )
        for group in range(four, min(four + FOUR, sketch.groups)):
            store(uppers, group * LANES, raised(load(uppers, group * LANES), margin))
    for place in range(sketch.rows, sketch.groups * LANES):
        _forget(intervals, place)


@inline
def margin_of(intervals):
    return splat32(np.float32(intervals.coded.factors[MARGIN] * MARGIN_SPARE))


@inline
def raised(upper, margin):
    return multiply_add(magnitude(upper), np.float32(BOUND_SPARE), upper) + margin


@inline
def _forget(intervals, place):
    intervals.estimates[place] = intervals.uppers[place] = -np.inf
    intervals.states[place] = KNOWN


@inline
def know(intervals, row, logit):
    _forget(intervals, int(intervals.places[row]))
    intervals.logits[row] = logit
    if logit > -np.inf:
        count = int(intervals.state[COUNT])
        intervals.known[count] = row
        intervals.state[COUNT] = count + 1
        intervals.state[MOST] = max(intervals.state[MOST], logit)


@inline
def compute(descriptor, intervals, row):
    know(intervals, row, exact_logit(matrix_at(descriptor, 0), intervals.wide, row))
    intervals.state[COMPUTED] += 1.0


@inline
def refine_batch(descriptor, intervals, count):
    coded, margin = intervals.coded, margin_of(intervals)
    refine_places(sketch_at(descriptor), coded, intervals.batch, count, intervals.rows)
    for i in range(0, count, LANES):
        store(coded.uppers, i, raised(load(coded.uppers, i), margin))
    for i in range(count):
        place = intervals.batch[i]
        intervals.estimates[place], intervals.uppers[place] = coded.estimates[i], coded.uppers[i]
        intervals.states[place] = FINE
    intervals.state[REFINED] += count


@inline_once
def find_most(descriptor, intervals, below, most_rows):
    """Compute all rows with logits possibly within `below` of the largest, included.

    False if it takes more logits than `most_rows`.
    """
    size = places_of(descriptor)
    _compute_likeliest(descriptor, intervals, size)
    first, count = 0, 0
    while first < size:
        while first < size and count <= BATCH - 2 * LANES:
            mask = lanes_not_below(load(intervals.uppers, first), _reaching(intervals, below))
            count = append_lanes(intervals.batch, count, mask, first)
            first += LANES
        if count == 0:
            continue
        refine_batch(descriptor, intervals, count)
        best = 0
        for i in range(1, count):
            if intervals.coded.estimates[i] > intervals.coded.estimates[best]:
                best = i
        for i in range(count):
            place = intervals.batch[(best + i) % count]
            if not intervals.uppers[place] < _reaching(intervals, below):
                compute(descriptor, intervals, int(intervals.rows[(best + i) % count]))
        count = 0
        if intervals.state[COMPUTED] > most_rows:
            return False
    intervals.state[BELOW] = below
    return intervals.state[MOST] > -np.inf


@inline
def _compute_likeliest(descriptor, intervals, size):
    likely = largest_of(intervals.estimates, size)
    if likely > -np.inf:
        for place in range(0, size, LANES):
            mask = lanes_not_below(load(intervals.estimates, place), likely)
            if mask != 0:
                likeliest = place + lowest_bit(mask)
                compute(descriptor, intervals, int(sketch_at(descriptor).order[likeliest]))
                break


@inline
def _reaching(intervals, below):
    """Return a float32 above -inf and at most the largest known logit less `below`."""
    most = intervals.state[MOST]
    return max(LOWEST, np.float32(most - below - SPARE * (abs(most) + below)))


@inline_once
def begin(descriptor, intervals, h, norm, edited, values, first, last, below):
    """Bound a row of hidden with edits edited[first:last]; False if that takes too many logits.

    The largest is then known, and all possibly within `below` of it, if they are few.
    """
    intervals.state[COUNT], intervals.state[MOST], intervals.state[BELOW] = 0.0, -np.inf, 0.0
    intervals.state[COMPUTED] = intervals.state[REFINED] = 0.0
    for place in range(places_of(descriptor)):
        intervals.states[place] = COARSE
    bound_all(descriptor, intervals, h, norm)
    for i in range(first, last):
        know(intervals, edited[i], values[i])
    if below > 0.0 and find_most(descriptor, intervals, below, few_of(descriptor)):
        return True
    return find_most(descriptor, intervals, 0.0, descriptor[ROWS] // PATIENCE + 1)
