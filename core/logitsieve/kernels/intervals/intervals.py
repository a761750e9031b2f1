"""Intervals of all logits of a row of hidden, narrowed on demand.

Intervals come from the coarse codes (with levels, the second level), then from the fine ones (the
last level). A known row has its exact logit; the row with the largest logit always is known.

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
from logitsieve.kernels.simd.masks import append_lanes, first_lanes, lanes_not_below, lowest_bit
from logitsieve.kernels.simd.pointers import as_float32, as_int8, as_int32, as_uint8, shift
from logitsieve.kernels.sketch.bounds import (
    FOUR,
    REFINED_SCRATCH,
    bound_four,
    coarse_factors,
    refine_places,
    refined_at,
    sum_four,
)
from logitsieve.kernels.sketch.levels import (
    FULL,
    drop_sixteen,
    first_level,
    last_level,
    level_queue_at,
    middle_estimate,
    middle_level,
    middle_upper,
    queue_rows,
)
from logitsieve.kernels.sketch.sieve import FIRST, store_bases
from logitsieve.kernels.sketch.sketch import (
    FACTORS,
    MARGIN,
    codes_scratch_size,
    encode_query,
    rotated_scratch_size,
    sketch_at,
)
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

# Of `state`: the number of known finite logits, the largest, logits computed, rows refined, and the
# distance below the largest within which all logits are known.
COUNT, MOST, COMPUTED, REFINED, BELOW = range(5)
STATE = 8

# Pointers: float32 estimates and upper bounds of logits [S], -inf for known rows, and scratch
# `gaps`; uint8 states [S]; float64 logits [V] of known rows, and the ids of finite ones; the
# float64 state; places of rows in the sketch's order [V]; the query's codes and factors; scratch to
# refine rows, their places and ids; the row of hidden in float64.
Intervals = namedtuple(
    "Intervals",
    "estimates uppers gaps states logits known state places planes factors refined batch rows wide",
)


@inline
def few_of(descriptor):
    return descriptor[ROWS] // NEAR + CHUNK


@inline
def places_of(descriptor):
    return sketch_at(descriptor).groups * LANES


@inline
def intervals_scratch_size(descriptor):
    size = places_of(descriptor)
    query = (
        padded(descriptor[DIM])
        + codes_scratch_size(descriptor)
        + FACTORS
        + rotated_scratch_size(descriptor)
    )
    by_place = 3 * size // 2 + size // 8 + LANES
    return query + REFINED_SCRATCH + by_place + size + size // 2 + STATE + BATCH


@inline
def intervals_at(descriptor, scratch, place_of):
    size = places_of(descriptor)
    planes = shift(scratch, padded(descriptor[DIM]))
    factors = shift(planes, codes_scratch_size(descriptor))
    refined = shift(factors, FACTORS + rotated_scratch_size(descriptor))
    logits = shift(refined, REFINED_SCRATCH)
    state = shift(logits, size)
    floats = as_float32(shift(state, STATE))
    known = as_int32(shift(floats, 3 * size))
    batch = shift(known, size)
    rows = shift(batch, BATCH)
    return Intervals(
        floats, shift(floats, size), shift(floats, 2 * size), as_uint8(shift(rows, BATCH)),
        logits, known, state, place_of, as_int8(planes), factors, refined_at(refined), batch, rows,
        scratch,
    )  # fmt: skip


@splice
def bound_all(descriptor, intervals, h, norm, below):
    """Bound the rows that are not known, for a row of hidden with that norm, already widened.

    With levels, rows with logits possibly within `below` of the largest are narrowed at once, while
    the sums of their groups are at hand.
    """
    rotated = as_float32(shift(intervals.factors, FACTORS))
    encode_query(descriptor, h, norm, rotated, intervals.planes, intervals.factors)
    sketch = sketch_at(descriptor)
    margin = splat32(np.float32(intervals.factors[MARGIN] * MARGIN_SPARE))
    if sketch.tail_width > 0:
        _bound_levels(descriptor, intervals, margin, below)
    else:
        _bound_steep(descriptor, intervals, margin)
    for place in range(sketch.rows, sketch.groups * LANES):
        _forget(intervals, place)


@inline
def _bound_steep(descriptor, intervals, margin):
    sketch, query = sketch_at(descriptor), coarse_factors(intervals.factors)
    for group in range(0, sketch.groups, FOUR):
        bounds = bound_four(sketch, intervals.planes, query, group, sketch.groups)
        g0, g1, g2, g3 = four_from(group, sketch.groups)
        _store(intervals, g0, bounds[0], margin)
        _store(intervals, g1, bounds[1], margin)
        _store(intervals, g2, bounds[2], margin)
        _store(intervals, g3, bounds[3], margin)


@splice
def _bound_levels(descriptor, intervals, margin, below):
    sketch, query = sketch_at(descriptor), coarse_factors(intervals.factors)
    levels, bases = query.levels, intervals.refined.biases
    queue, queued, near = level_queue_at(intervals.refined.rests), 0, below
    for four in range(0, sketch.groups, FOUR):
        if four == FIRST:
            _compute_likeliest(descriptor, intervals, FIRST * LANES)
        sums = sum_four(sketch, intervals.planes, four, sketch.groups)
        store_bases(sketch, bases, query, four, sketch.groups, sums)
        for group in range(four, min(four + FOUR, sketch.groups)):
            at = 2 * LANES * (group - four)
            base = load(bases, at), load(bases, at + LANES)
            twice, _ = first_level(sketch, intervals.planes, levels, base[1], group)
            middle = middle_level(sketch, intervals.planes, twice, group)
            bounds = middle_estimate(levels, middle, base[0]), middle_upper(levels, middle, base[1])
            _store(intervals, group, bounds, margin)
            if intervals.state[COMPUTED] > few_of(descriptor):
                near = 0.0
            if group < FIRST or intervals.state[COMPUTED] > descriptor[ROWS] // PATIENCE:
                continue
            limit = _reaching(intervals, near)
            mask = lanes_not_below(load(intervals.uppers, group * LANES), limit)
            if group == sketch.groups - 1:
                mask = first_lanes(mask, sketch.rows - group * LANES)
            queued = queue_rows(sketch, levels, middle, base, group, mask, queue, queued)
            if queued >= FULL:
                _narrow_sixteen(descriptor, intervals, levels, queue, LANES, margin, near)
                queued = drop_sixteen(queue, queued)
    while queued > 0:
        size = min(queued, LANES)
        _narrow_sixteen(descriptor, intervals, levels, queue, size, margin, near)
        queued = drop_sixteen(queue, queued)


@inline
def _narrow_sixteen(descriptor, intervals, levels, queue, count, margin, near):
    """Narrow the first `count` rows of a queue, and compute those within `near` of the largest."""
    estimate, upper = last_level(sketch_at(descriptor), intervals.planes, levels, queue, count)
    store(queue.scales, 0, estimate)
    store(queue.rests, 0, raised(upper, margin))
    for i in range(count):
        place = np.int64(queue.places[i])
        if intervals.states[place] != KNOWN:
            _note_fine(intervals, place, queue.scales[i], queue.rests[i])
            if not queue.rests[i] < _reaching(intervals, near):
                compute(descriptor, intervals, int(sketch_at(descriptor).order[place]))


@inline
def _store(intervals, group, bounds, margin):
    store(intervals.estimates, group * LANES, bounds[0])
    store(intervals.uppers, group * LANES, raised(bounds[1], margin))


@inline
def raised(upper, margin):
    upper = multiply_add(magnitude(upper), splat32(np.float32(BOUND_SPARE)), upper)
    return multiply_add(margin, splat32(np.float32(1)), upper)


@inline
def _forget(intervals, place):
    intervals.estimates[place] = intervals.uppers[place] = -np.inf
    intervals.states[place] = KNOWN


@inline
def know(intervals, row, logit):
    """Record the logit of a row; -inf excludes it."""
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
    sketch, factors = sketch_at(descriptor), intervals.factors
    refine_places(
        sketch, intervals.planes, factors, intervals.batch, count, intervals.rows,
        intervals.refined,
    )  # fmt: skip
    margin = splat32(np.float32(factors[MARGIN] * MARGIN_SPARE))
    for i in range(0, count, LANES):
        store(intervals.refined.uppers, i, raised(load(intervals.refined.uppers, i), margin))
    for i in range(count):
        estimate, upper = intervals.refined.estimates[i], intervals.refined.uppers[i]
        _note_fine(intervals, intervals.batch[i], estimate, upper)


@inline
def _note_fine(intervals, place, estimate, upper):
    intervals.estimates[place], intervals.uppers[place] = estimate, upper
    intervals.states[place] = FINE
    intervals.state[REFINED] += 1.0


@splice
def find_most(descriptor, intervals, below, most_rows):
    """Compute all rows with logits possibly within `below` of the largest, the largest included.

    All other rows have bounds below that. Returns False if it takes more logits than `most_rows`.
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
            if intervals.refined.estimates[i] > intervals.refined.estimates[best]:
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
                if intervals.states[likeliest] != KNOWN:
                    compute(descriptor, intervals, int(sketch_at(descriptor).order[likeliest]))
                break


@inline
def _reaching(intervals, below):
    """Return a float32 above -inf and at most the largest known logit less `below`."""
    most = intervals.state[MOST]
    return max(LOWEST, np.float32(most - below - SPARE * (abs(most) + below)))


@splice
def begin(descriptor, intervals, h, norm, edited, values, first, last, below):
    """Bound a row of hidden with edits edited[first:last]; False if that takes too many logits.

    The largest logit is then known, and all logits possibly within `below` of it, if they are few.
    """
    intervals.state[COUNT], intervals.state[MOST], intervals.state[BELOW] = 0.0, -np.inf, 0.0
    intervals.state[COMPUTED] = intervals.state[REFINED] = 0.0
    for place in range(places_of(descriptor)):
        intervals.states[place] = COARSE
    for i in range(first, last):
        intervals.states[intervals.places[edited[i]]] = KNOWN
    bound_all(descriptor, intervals, h, norm, below)
    for i in range(first, last):
        know(intervals, edited[i], values[i])
    if below > 0.0 and find_most(descriptor, intervals, below, few_of(descriptor)):
        return True
    return find_most(descriptor, intervals, 0.0, descriptor[ROWS] // PATIENCE + 1)
