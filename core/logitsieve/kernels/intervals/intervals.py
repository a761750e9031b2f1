"""Intervals of all logits of a row of hidden, narrowed where a question needs it.

An interval is that of the coarse codes, then of the fine ones, then the logit itself: the row is
known then. The largest logit always is, or a larger one of rows elsewhere.

Shape letters: V vocabulary, S places: V up to a multiple of 16, in the order of the sketch.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, splice
from logitsieve.kernels.simd.dots import four_from, padded
from logitsieve.kernels.simd.lanes import (
    LANES,
    largest_of,
    load,
    magnitude,
    multiply_add,
    splat32,
    store,
)
from logitsieve.kernels.simd.masks import (
    append_lanes,
    lanes_not_below,
    lowest_bit,
)
from logitsieve.kernels.simd.pointers import as_float32, as_int8, as_int32, as_uint8, shift
from logitsieve.kernels.sketch.bounds import (
    FOUR,
    REFINED_ROOM,
    bound_four,
    coarse_factors,
    refine_places,
    refined_at,
)
from logitsieve.kernels.sketch.sketch import (
    FACTORS,
    MARGIN,
    codes_room,
    encode_query,
    rotated_room,
    sketch_at,
)
from logitsieve.kernels.sketch.thresholds import LOWEST, SPARE
from logitsieve.kernels.topk.csr import exact_logit
from logitsieve.kernels.topk.descriptor import DIM, ROWS, matrix_at
from logitsieve.kernels.topk.queries import CHUNK

COARSE, FINE, KNOWN = 0, 1, 2
ROOM = CHUNK + LANES  # rows that are refined at once, and what is appended to them
PATIENCE = 3  # a row's known logits beyond V / PATIENCE: all of W takes less time

# What proofs/intervals.py proves to be enough.
MARGIN_SPARE = 1 + 1e-6  # of a margin, for rounding it to float32
BOUND_SPARE = 2.0**-21  # of a bound, for adding the margin

# Of `state`: known rows that count, the best of them or a larger logit of rows elsewhere, logits
# computed, rows refined.
COUNT, MOST, COMPUTED, REFINED = range(4)
STATE = 4

# Pointers to float32 estimates and upper bounds of logits [S], -inf where there is none, as for
# known rows; uint8 states [S]; float64 logits [V] of known rows, and those rows, but for -inf; the
# float64 state; where rows of W are in the sketch's order [V]; what the query is to the sketch;
# room to refine rows, for their places and numbers; the row of hidden in float64.
Intervals = namedtuple(
    "Intervals",
    "estimates uppers gaps states logits known state places planes factors refined listed rows"
    " wide",
)


@inline
def places_of(descriptor):
    return sketch_at(descriptor).groups * LANES


@inline
def intervals_room(descriptor):
    """float64 values of scratch."""
    size = places_of(descriptor)
    query = padded(descriptor[DIM]) + codes_room(descriptor) + FACTORS + rotated_room(descriptor)
    by_place = 3 * size // 2 + size // 8 + LANES
    return query + REFINED_ROOM + by_place + size + size // 2 + STATE + ROOM


@inline
def intervals_at(descriptor, scratch, place_of):
    size = places_of(descriptor)
    planes = shift(scratch, padded(descriptor[DIM]))
    factors = shift(planes, codes_room(descriptor))
    refined = shift(factors, FACTORS + rotated_room(descriptor))
    logits = shift(refined, REFINED_ROOM)
    state = shift(logits, size)
    floats = as_float32(shift(state, STATE))
    known = as_int32(shift(floats, 3 * size))
    listed = shift(known, size)
    rows = shift(listed, ROOM)
    return Intervals(
        floats, shift(floats, size), shift(floats, 2 * size), as_uint8(shift(rows, ROOM)),
        logits, known, state, place_of, as_int8(planes), factors, refined_at(refined), listed, rows,
        scratch,
    )  # fmt: skip


@splice
def bound_all(descriptor, intervals, h, norm):
    """Intervals by the coarse codes, for a row of hidden of that norm, widened before."""
    rotated = as_float32(shift(intervals.factors, FACTORS))
    encode_query(descriptor, h, norm, rotated, intervals.planes, intervals.factors)
    sketch, query = sketch_at(descriptor), coarse_factors(intervals.factors)
    margin = splat32(np.float32(intervals.factors[MARGIN] * MARGIN_SPARE))
    for group in range(0, sketch.groups, FOUR):
        bounds = bound_four(sketch, intervals.planes, query, group, sketch.groups)
        a, b, c, e = four_from(group, sketch.groups)
        _store(intervals, a, bounds[0], margin)
        _store(intervals, b, bounds[1], margin)
        _store(intervals, c, bounds[2], margin)
        _store(intervals, e, bounds[3], margin)
    for place in range(sketch.groups * LANES):
        intervals.states[place] = COARSE
    for place in range(sketch.rows, sketch.groups * LANES):
        _forget(intervals, place)
    intervals.state[COUNT], intervals.state[MOST] = 0.0, -np.inf
    intervals.state[COMPUTED] = intervals.state[REFINED] = 0.0


@inline
def _store(intervals, group, bounds, margin):
    estimate, upper = bounds
    upper = multiply_add(magnitude(upper), splat32(np.float32(BOUND_SPARE)), upper)
    upper = multiply_add(margin, splat32(np.float32(1)), upper)
    store(intervals.estimates, group * LANES, estimate)
    store(intervals.uppers, group * LANES, upper)


@inline
def _forget(intervals, place):
    intervals.estimates[place] = intervals.uppers[place] = -np.inf
    intervals.states[place] = KNOWN


@inline
def know(intervals, row, logit):
    """Note the logit of a row, -inf for one that does not count."""
    _forget(intervals, int(intervals.places[row]))
    intervals.logits[row] = logit
    if logit > -np.inf:
        count = int(intervals.state[COUNT])
        intervals.known[count] = row
        intervals.state[COUNT] = count + 1
        intervals.state[MOST] = max(intervals.state[MOST], logit)


@inline
def compute(descriptor, intervals, row):
    """Compute the logit of a row that is not known."""
    know(intervals, row, exact_logit(matrix_at(descriptor, 0), intervals.wide, row))
    intervals.state[COMPUTED] += 1.0


@inline
def refine_listed(descriptor, intervals, count):
    """Narrow the intervals of the rows at the places listed[:count] by their fine codes."""
    sketch, factors = sketch_at(descriptor), intervals.factors
    refine_places(
        sketch, intervals.planes, factors, intervals.listed, count, intervals.rows,
        intervals.refined,
    )  # fmt: skip
    for i in range(count):
        place, upper = intervals.listed[i], float(intervals.refined.uppers[i])
        intervals.estimates[place] = intervals.refined.estimates[i]
        upper += factors[MARGIN] * MARGIN_SPARE + BOUND_SPARE * abs(upper)
        intervals.uppers[place] = np.float32(upper)
        intervals.states[place] = FINE
    intervals.state[REFINED] += count


@splice
def find_most(descriptor, intervals):
    """Compute all rows that may have the largest logit, beside `MOST`; False if they are too many.

    Then every row that is not known has a bound below it.
    """
    size, most_rows = places_of(descriptor), descriptor[ROWS] // PATIENCE + 1
    _compute_likeliest(descriptor, intervals, size)
    first, count = 0, 0
    while first < size:
        while first < size and count <= ROOM - 2 * LANES:
            mask = lanes_not_below(load(intervals.uppers, first), _below_most(intervals))
            count = append_lanes(intervals.listed, count, mask, first)
            first += LANES
        if count == 0:
            continue
        refine_listed(descriptor, intervals, count)
        best = 0
        for i in range(1, count):
            if intervals.refined.estimates[i] > intervals.refined.estimates[best]:
                best = i
        for i in range(count):
            place = intervals.listed[(best + i) % count]
            if not intervals.uppers[place] < _below_most(intervals):
                compute(descriptor, intervals, int(intervals.rows[(best + i) % count]))
        count = 0
        if intervals.state[COMPUTED] > most_rows:
            return False
    return intervals.state[MOST] > -np.inf


@inline
def _compute_likeliest(descriptor, intervals, size):
    """Compute a row with the largest estimate, if any row is not known."""
    likely = largest_of(intervals.estimates, size)
    if likely > -np.inf:
        for place in range(0, size, LANES):
            mask = lanes_not_below(load(intervals.estimates, place), likely)
            if mask != 0:
                likeliest = place + lowest_bit(mask)
                if intervals.states[likeliest] != KNOWN:
                    compute(descriptor, intervals, int(sketch_at(descriptor).order[likeliest]))
                break


@inline
def _below_most(intervals):
    """A float32 that is not above the largest known logit, and more than -inf."""
    most = intervals.state[MOST]
    return max(LOWEST, np.float32(most - SPARE * abs(most)))


@splice
def begin(descriptor, intervals, h, norm, edited, values, first, last):
    """Intervals of a row of hidden, with its edits edited[first:last]; False if they say nothing.

    The largest logit is known then, and all that may be as large.
    """
    bound_all(descriptor, intervals, h, norm)
    intervals.state[MOST] = -np.inf
    for i in range(first, last):
        know(intervals, edited[i], values[i])
    return find_most(descriptor, intervals)
