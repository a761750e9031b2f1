"""Weights of all rows, none below e^{x_i / T}, from the sketch's bounds of the logits x_i.

A weight is that of the coarse codes, then of the fine ones, then exact; relative to about the
largest, in float32, so that an exact one is off by 2^-24 of itself, or 2^-150. Or, for a log Z that
is close, all weights are those of the fine codes from the start. Rows that have much of the weight
are made exact at once.

Shape letters: V vocabulary, E edits of a row.
"""

from __future__ import annotations

from collections import namedtuple
from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, splice
from logitsieve.kernels.sampling.weight_tree import (
    BLOCK,
    TILE,
    WeightTree,
    sum_again,
    sum_all,
    total_weight,
)
from logitsieve.kernels.simd.dots import four_from, padded
from logitsieve.kernels.simd.exponential import exp_lanes
from logitsieve.kernels.simd.lanes import (
    LANES,
    largest_of,
    load,
    magnitude,
    multiply_add,
    pair_sum,
    splat32,
    splat64,
    store,
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.masks import lanes_not_below, lowest_bit
from logitsieve.kernels.simd.pointers import as_float32, as_int8, as_int32, shift
from logitsieve.kernels.sketch.bounds import (
    FOUR,
    REFINED_ROOM,
    bound_four,
    coarse_factors,
    refine,
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
from logitsieve.kernels.topk.csr import exact_logit
from logitsieve.kernels.topk.descriptor import DIM, ROWS, matrix_at
from logitsieve.kernels.topk.queries import CHUNK

HEAVY = 1 / 256  # of all weight: rows that have more are computed before the first draw
FAR = 20.0  # nats that a bound may stay above the best known logit, lest weights underflow
LIFTED = 1.0  # nats that float32 may cost: beyond it, at logits / T of millions, all is computed
LEAST = 2e-38  # more than `exp_lanes` makes of -inf
COARSE, FINE, EXACT = 0, 1, 2

# What proofs/envelope.py proves to be enough.
MARGIN_SPARE = 1 + 1e-6  # of a margin, for rounding it to float32
BOUND_SPARE = 2.0**-21  # of a bound, for adding the margin
LIFT, REACH = 2.0**-21, 100.0  # of |top| and of so many nats, for an exponent in float32
LOW_LIFTS = 4  # for the exponents of lower bounds, and what computed rows leave of theirs
SUM_SPARE = 1e-5  # of sums of weights
LOG_SPARE = 2.0**-50  # of |top|
ESTIMATES, LOWS, FAILED = 0, 1, 2

# The tree of the weights, which are bounds of logits at first; pointers to float32 estimates
# [V padded], of logits at first; uint8 states; float64 sums of the estimates, of the least that the
# weights can be, and how many trials failed; what the query is to the sketch; room to refine rows,
# for their places, and for what trials reach of the weights there; the row of hidden in float64.
# Places are rows of W if `fine`, else of the sketch's order.
Envelope = namedtuple(
    "Envelope", "tree estimates states sums planes factors refined rows places reached wide fine"
)
# Weights are e^{x inverse - top}, inverse being 1 / T; bounds have `lift` added to their exponents,
# which is more than float32 may take from them.
WeightScale = namedtuple("WeightScale", "inverse top lift")


@inline
def places_of(descriptor):
    """The number of places in the tree: all rows, up to a multiple of BLOCK."""
    return (sketch_at(descriptor).rows + BLOCK - 1) // BLOCK * BLOCK


@inline
def envelope_room(descriptor, size):
    """float64 values of scratch for an envelope of that many places."""
    query = padded(descriptor[DIM]) + codes_room(descriptor) + FACTORS + rotated_room(descriptor)
    return query + REFINED_ROOM + size + size // TILE + size // BLOCK + 3 + 2 * CHUNK


@inline
def envelope_at(descriptor, scratch, states, size, fine):
    """The envelope in that room, still empty; `states` has `size` bytes."""
    planes = shift(scratch, padded(descriptor[DIM]))
    factors = shift(planes, codes_room(descriptor))
    refined = shift(factors, FACTORS + rotated_room(descriptor))
    floats = as_float32(shift(refined, REFINED_ROOM))
    tiles = shift(refined, REFINED_ROOM + size)
    blocks = shift(tiles, size // TILE)
    sums = shift(blocks, size // BLOCK)
    return Envelope(
        WeightTree(floats, tiles, blocks, size), shift(floats, size), states, sums,
        as_int8(planes), factors, refined_at(refined), as_int32(shift(sums, 3)),
        as_int32(shift(sums, 3 + CHUNK // 2)), shift(sums, 3 + CHUNK), scratch, fine,
    )  # fmt: skip


@splice
def weigh_all(descriptor, envelope, h, norm, inverse, edited, instead, count):
    """Weigh all rows for a row of hidden of that norm, widened before: (scale, rows computed).

    The logits at the places edited[:count] are `instead`.
    """
    rotated = as_float32(shift(envelope.factors, FACTORS))
    encode_query(descriptor, h, norm, rotated, envelope.planes, envelope.factors)
    if envelope.fine:
        _bound_finely(descriptor, envelope)
    else:
        _bound_all(descriptor, envelope)
    scale, rows_computed = _weight_scale(descriptor, envelope, inverse, edited, instead, count)
    if scale.lift <= LIFTED:
        _weigh(descriptor, envelope, scale)
    else:
        scale, rows_computed = _weigh_exactly(descriptor, envelope, scale)
    for i in range(count):
        _put(envelope, edited[i], exp(instead[i] * inverse - scale.top))
    sum_all(envelope.tree)
    before = -1
    while rows_computed > before:  # what is computed makes the sum fall, so that others are heavy
        before = rows_computed
        rows_computed += _compute_heavy(descriptor, envelope, scale)
    return scale, rows_computed


@splice
def _bound_all(descriptor, envelope):
    """Estimates and bounds of all logits; -inf beyond the vocabulary."""
    sketch, query = sketch_at(descriptor), coarse_factors(envelope.factors)
    margin = splat32(np.float32(envelope.factors[MARGIN] * MARGIN_SPARE))
    for group in range(0, sketch.groups, FOUR):
        bounds = bound_four(sketch, envelope.planes, query, group, sketch.groups)
        a, b, c, e = four_from(group, sketch.groups)
        _store_bounds(envelope, a, bounds[0], margin)
        _store_bounds(envelope, b, bounds[1], margin)
        _store_bounds(envelope, c, bounds[2], margin)
        _store_bounds(envelope, e, bounds[3], margin)
    _begin(descriptor, envelope, COARSE)


@splice
def _bound_finely(descriptor, envelope):
    """Estimates and bounds by the fine codes, in the order of the rows of W."""
    sketch, margin = (
        sketch_at(descriptor),
        splat32(np.float32(envelope.factors[MARGIN] * MARGIN_SPARE)),
    )
    for first in range(0, sketch.rows, CHUNK):
        count = min(CHUNK, sketch.rows - first)
        for i in range(count):
            envelope.rows[i] = first + i
        refine(sketch, envelope.planes, envelope.factors, envelope.rows, count, envelope.refined)
        for i in range(0, count, LANES):
            bounds = load(envelope.refined.estimates, i), load(envelope.refined.uppers, i)
            _store_bounds(envelope, (first + i) // LANES, bounds, margin)
    _begin(descriptor, envelope, FINE)


@inline
def _store_bounds(envelope, group, bounds, margin):
    estimate, upper = bounds
    upper = multiply_add(magnitude(upper), splat32(np.float32(BOUND_SPARE)), upper)
    upper = multiply_add(margin, splat32(np.float32(1)), upper)
    store(envelope.estimates, group * LANES, estimate)
    store(envelope.tree.weights, group * LANES, upper)


@inline
def _begin(descriptor, envelope, state):
    """Set the state of all places; beyond the vocabulary weights are 0, exactly."""
    for place in range(envelope.tree.size):
        envelope.states[place] = state
    for place in range(sketch_at(descriptor).rows, envelope.tree.size):
        envelope.tree.weights[place] = envelope.estimates[place] = -np.inf
        envelope.states[place] = EXACT


@inline
def row_at(descriptor, envelope, place):
    return place if envelope.fine else int(sketch_at(descriptor).order[place])


@inline
def _logit(descriptor, envelope, place):
    return exact_logit(matrix_at(descriptor, 0), envelope.wide, row_at(descriptor, envelope, place))


@splice
def _weight_scale(descriptor, envelope, inverse, edited, instead, count):
    """Compute rows far above all known logits, drop edited ones: (scale, rows computed).

    Those rows keep float32 bounds of what was computed: they are still to be made exact.
    """
    bounds, size = envelope.tree.weights, envelope.tree.size
    best, rows_computed = -np.inf, 0
    for i in range(count):
        bounds[edited[i]] = envelope.estimates[edited[i]] = -np.inf
        best = max(best, instead[i])
    likely = largest_of(envelope.estimates, size)
    if likely > -np.inf:
        for place in range(0, size, LANES):
            mask = lanes_not_below(load(envelope.estimates, place), likely)
            if mask != 0:
                best = max(best, _logit(descriptor, envelope, place + lowest_bit(mask)))
                rows_computed += 1
                break
    for first in range(0, size, LANES):
        # A bound may be NaN where the sketch has nothing to say: it is not below either.
        mask = lanes_not_below(load(bounds, first), np.float32(best + FAR / inverse))
        while mask != 0:
            place = first + lowest_bit(mask)
            mask &= mask - 1
            if place < sketch_at(descriptor).rows:
                logit = _logit(descriptor, envelope, place)
                best, rows_computed = max(best, logit), rows_computed + 1
                envelope.estimates[place] = np.float32(logit)
                bounds[place] = np.float32(logit + BOUND_SPARE * abs(logit))
    top = max(best, float(largest_of(bounds, size))) * inverse
    lift = LIFT * (abs(top) + REACH)
    if not lift <= LIFTED:
        return WeightScale(inverse, best * inverse, np.inf), rows_computed
    return WeightScale(inverse, top + 2 * lift, lift), rows_computed


@splice
def _weigh(descriptor, envelope, scale):
    """Weights, and estimates of them; the sums of the estimates and of the lower bounds."""
    inverse, down = splat32(np.float32(scale.inverse)), splat32(np.float32(-scale.top))
    lifted = splat32(np.float32(scale.lift - scale.top))
    minus, two, one = splat32(np.float32(-1)), splat32(np.float32(2)), splat64(1.0)
    estimates, lows = zeros64(), zeros64()
    for place in range(0, sketch_at(descriptor).groups * LANES, LANES):
        upper, estimate = load(envelope.tree.weights, place), load(envelope.estimates, place)
        lower = multiply_add(minus, upper, multiply_add(two, estimate, zeros32()))
        weight = exp_lanes(multiply_add(estimate, inverse, down))
        store(envelope.tree.weights, place, exp_lanes(multiply_add(upper, inverse, lifted)))
        store(envelope.estimates, place, weight)
        estimates = multiply_add(widen(weight), one, estimates)
        low = exp_lanes(multiply_add(lower, inverse, down))
        lows = multiply_add(widen(low), one, lows)
    envelope.sums[ESTIMATES] = pair_sum(estimates)
    envelope.sums[LOWS] = pair_sum(lows) - envelope.tree.size * LEAST
    for place in range(sketch_at(descriptor).rows, envelope.tree.size):
        envelope.tree.weights[place] = 0


@splice
def _weigh_exactly(descriptor, envelope, scale):
    """Make every weight exact, but for edited rows, -inf so far: (scale, rows computed)."""
    rows, top = sketch_at(descriptor).rows, scale.top
    for place in range(rows):
        if envelope.estimates[place] > -np.inf:
            top = max(top, _logit(descriptor, envelope, place) * scale.inverse)
    envelope.sums[ESTIMATES] = envelope.sums[LOWS] = 0.0
    for place in range(envelope.tree.size):
        weight = 0.0
        if envelope.estimates[place] > -np.inf:
            weight = exp(_logit(descriptor, envelope, place) * scale.inverse - top)
        envelope.tree.weights[place] = envelope.estimates[place] = 0
        _put(envelope, place, weight)
    return WeightScale(scale.inverse, top, 0.0), rows


@inline
def _put(envelope, place, weight):
    """The exact weight at a place; its tile is to be added up again."""
    before, upper = float(envelope.estimates[place]), float(envelope.tree.weights[place])
    envelope.sums[ESTIMATES] += weight - before
    envelope.sums[LOWS] += weight - before * before / max(upper, LEAST)
    envelope.tree.weights[place] = envelope.estimates[place] = np.float32(weight)
    envelope.states[place] = EXACT


@inline
def compute(descriptor, envelope, scale, place):
    """Make the weight at a place exact, and return it in float64."""
    weight = exp(_logit(descriptor, envelope, place) * scale.inverse - scale.top)
    _put(envelope, place, weight)
    return weight


@splice
def _compute_heavy(descriptor, envelope, scale):
    """Make large shares of all weight exact; the number of rows computed."""
    tree, rows_computed = envelope.tree, 0
    threshold = total_weight(tree) * HEAVY
    for tile in range(tree.size // TILE):
        if tree.tiles[tile] >= threshold:
            for place in range(tile * TILE, (tile + 1) * TILE):
                if tree.weights[place] >= threshold and envelope.states[place] != EXACT:
                    compute(descriptor, envelope, scale, place)
                    rows_computed += 1
            sum_again(tree, tile * TILE)
    return rows_computed


@splice
def write_log_z(envelope, scale, log_z):
    """log_z [3]: an estimate of log Z, and the two numbers that it is proven to lie between.

    A weight holds `lift` already. A lower bound does not, and where its row was computed, some was
    left of it: what `_put` takes off errs by 13/8 of the lift beside the lift itself.
    """
    low, off = envelope.sums[LOWS] * (1 - SUM_SPARE), LOG_SPARE * abs(scale.top)
    log_z[0] = scale.top + log(max(envelope.sums[ESTIMATES], LEAST))
    log_z[1] = scale.top + log(low) - LOW_LIFTS * scale.lift - off if low > 0 else -np.inf
    log_z[2] = scale.top + log(total_weight(envelope.tree)) + SUM_SPARE + off


@inline
def refine_listed(descriptor, envelope, count):
    """Bounds by the fine codes of the rows at envelope.places[:count]: `fine_weight` takes one."""
    for i in range(count):
        envelope.rows[i] = row_at(descriptor, envelope, envelope.places[i])
    refine(
        sketch_at(descriptor),
        envelope.planes,
        envelope.factors,
        envelope.rows,
        count,
        envelope.refined,
    )


@inline
def fine_weight(envelope, scale, i):
    """The weight that the fine codes allow listed row i; never so little that float32 loses it."""
    upper = float(envelope.refined.uppers[i])
    upper += envelope.factors[MARGIN] + BOUND_SPARE * abs(upper)
    exponent = upper * scale.inverse + scale.lift - scale.top
    if not exponent < 0:
        return 1.0
    return max(exp(exponent), LEAST)


@splice
def tighten_all(descriptor, envelope, scale):
    """Lower all weights that are the coarse codes' to what the fine ones allow."""
    weights, places = envelope.tree.weights, envelope.places
    for first in range(0, descriptor[ROWS], CHUNK):
        count = 0
        for place in range(first, min(first + CHUNK, descriptor[ROWS])):
            if envelope.states[place] == COARSE:
                places[count] = place
                count += 1
        refine_listed(descriptor, envelope, count)
        for i in range(count):
            weight = np.float32(fine_weight(envelope, scale, i))
            weights[places[i]] = min(weights[places[i]], weight)
            envelope.states[places[i]] = FINE
    sum_all(envelope.tree)
