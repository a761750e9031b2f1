"""Bounds of logits from coarse or fine codes: sketch.py."""

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.simd.byte_lanes import (
    AVX_VNNI,
    FORM,
    NEON_DOT,
    join_planes,
    multiply_bytes,
    multiply_row,
    scale_sums,
    store_totals,
    zero_sums,
)
from logitsieve.kernels.simd.dots import four_from, row_of
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    load_first,
    multiply_add,
    splat32,
    store,
    zeros32,
)
from logitsieve.kernels.simd.masks import lanes_not_below
from logitsieve.kernels.simd.pointers import as_float32, shift
from logitsieve.kernels.sketch.encode_query import (
    FINE_ERROR,
    FINE_REST,
    FINE_SUM,
    SCALE,
    coarse_factors,
)
from logitsieve.kernels.sketch.levels import (
    FOUR,
    HEAD_SCALE,
    coarse_numbers,
    first_sums,
    last_bounds,
    last_sums,
    middle_sums,
    number_lanes,
    uppers_by_lengths,
)
from logitsieve.kernels.sketch.sketch import EXTRA

IN_PAIRS = FORM in (AVX_VNNI, NEON_DOT)  # sums of four rows fill all registers


def _four_by(multiply):
    """four(r0, r1, r2, r3, planes, low, steps): sums of four rows, which share a query's loads."""

    @inline
    def four(r0, r1, r2, r3, planes, low, steps):
        zero = zero_sums(), zero_sums()
        s0, s1, s2, s3 = zero, zero, zero, zero
        for step in range(steps):
            s0 = multiply(s0, r0, planes, low, step)
            s1 = multiply(s1, r1, planes, low, step)
            if not IN_PAIRS:
                s2 = multiply(s2, r2, planes, low, step)
                s3 = multiply(s3, r3, planes, low, step)
        for step in range(steps if IN_PAIRS else 0):
            s2 = multiply(s2, r2, planes, low, step)
            s3 = multiply(s3, r3, planes, low, step)
        return join_planes(s0), join_planes(s1), join_planes(s2), join_planes(s3)

    return four


_four_groups, _four_rows = _four_by(multiply_bytes), _four_by(multiply_row)


@inline
def sum_four(sketch, planes, group, end):
    coarse, size = sketch.coarse, sketch.group_bytes
    g0, g1, g2, g3 = four_from(group, end)
    return _four_groups(
        row_of(coarse, g0, size), row_of(coarse, g1, size), row_of(coarse, g2, size),
        row_of(coarse, g3, size), planes, shift(planes, sketch.plane), sketch.coarse_width // 4,
    )  # fmt: skip


@inline
def bound_four(sketch, planes, query, group, end, estimates, uppers):
    """Store bounds of four groups before `end` by coarse codes or level 0, group g's at 16 g.

    Places beyond V have undefined bounds.
    """
    places = four_from(group, end)
    if sketch.tail_width > 0:
        sums = sum_four(sketch, planes, group, end)
        for i in range(FOUR):
            base = base_of(sketch, query, places[i], sums[i])
            upper = uppers_by_lengths(sketch, query.levels, base, places[i])
            store(estimates, places[i] * LANES, base[0])
            store(uppers, places[i] * LANES, upper)
    else:
        bounds = coarse_bounds(sketch, planes, query, group, end)
        for i in range(FOUR):
            store(estimates, places[i] * LANES, bounds[i][0])
            store(uppers, places[i] * LANES, bounds[i][1])


@inline
def two_levels(sketch, planes, group):
    return middle_sums(sketch, planes, first_sums(sketch, planes, group), group)


@inline
def coarse_bounds(sketch, planes, query, group, end):
    sums, (g0, g1, g2, g3) = sum_four(sketch, planes, group, end), four_from(group, end)
    return (
        _bound_steep(_extras(sketch, g0), query, sums[0]),
        _bound_steep(_extras(sketch, g1), query, sums[1]),
        _bound_steep(_extras(sketch, g2), query, sums[2]),
        _bound_steep(_extras(sketch, g3), query, sums[3]),
    )


@inline
def _extras(sketch, group):
    codes = group * sketch.group_bytes + LANES * sketch.coarse_width
    return as_float32(shift(sketch.coarse, codes))


@inline
def _bound_steep(extras, query, sums):
    scales, rests, bias = load(extras, 0), load(extras, LANES), load(extras, 2 * LANES)
    estimates = multiply_add(scales, scale_sums(sums, query.sum, query.scale), bias)
    upper = multiply_add(rests, query.rest, estimates)
    return estimates, multiply_add(scales, query.error, upper)


@inline
def base_of(sketch, query, group, sums):
    """Return estimates and upper bounds of a group with levels, without the tail."""
    scales = number_lanes(sketch, coarse_numbers(sketch, group), 0, HEAD_SCALE)
    return base_bounds(scales, _biases(sketch, group), query, sums)


@inline
def _biases(sketch, group):
    if not sketch.biased:
        return zeros32()
    left = sketch.rows - group * LANES
    if left < LANES:
        return load_first(sketch.bias, group * LANES, left)
    return load(sketch.bias, group * LANES)


@inline
def base_bounds(scales, bias, query, sums):
    base = multiply_add(scales, scale_sums(sums, query.sum, query.scale), bias)
    return base, multiply_add(scales, query.error, base)


@inline
def store_bases(sketch, coded, query, group, end, threshold, always):
    """Return a bit for each row of four groups before `end` with a bound that reaches `threshold`.

    Bounds are by level 0. If one does, or `always`, stores `base_of` the groups, for `base_at`; not
    while rows are refined.
    """
    (g0, g1, g2, g3), sums = four_from(group, end), sum_four(sketch, coded.planes, group, end)
    b0, b1 = base_of(sketch, query, g0, sums[0]), base_of(sketch, query, g1, sums[1])
    b2, b3 = base_of(sketch, query, g2, sums[2]), base_of(sketch, query, g3, sums[3])
    reached = _reached(sketch, query, b0, g0, threshold)
    reached |= _reached(sketch, query, b1, g1, threshold) << LANES
    reached |= _reached(sketch, query, b2, g2, threshold) << 2 * LANES
    reached |= _reached(sketch, query, b3, g3, threshold) << 3 * LANES
    if reached != 0 or always:
        _store_base(coded, 0, b0)
        _store_base(coded, 1, b1)
        _store_base(coded, 2, b2)
        _store_base(coded, 3, b3)
    return reached


@inline
def _reached(sketch, query, base, group, threshold):
    upper = uppers_by_lengths(sketch, query.levels, base, group)
    return lanes_not_below(upper, threshold)


@inline
def _store_base(coded, i, base):
    store(coded.biases, 2 * LANES * i, base[0])
    store(coded.biases, 2 * LANES * i + LANES, base[1])


@inline
def base_at(coded, i):
    return load(coded.biases, 2 * LANES * i), load(coded.biases, 2 * LANES * i + LANES)


@inline
def refine_places(sketch, coded, places, count, ids):
    for i in range(count):
        ids[i] = sketch.order[places[i]]
    if sketch.tail_width > 0:
        _refine_levels(sketch, coded, places, count)
    else:
        refine(sketch, coded, ids, count)


@inline_once
def _refine_levels(sketch, coded, places, count):
    query, planes, scratch = coarse_factors(coded.factors), coded.planes, coded.rests
    first = 0
    while first < count:
        group = np.int64(places[first]) // LANES
        base = base_of(sketch, query, group, sum_four(sketch, planes, group, group + 1)[0])
        fours = last_sums(sketch, planes, two_levels(sketch, planes, group), group)
        estimate, upper = last_bounds(sketch, query.levels, fours, base, group)
        store(scratch, 0, estimate)
        store(scratch, LANES, upper)
        while first < count and np.int64(places[first]) // LANES == group:
            lane = np.int64(places[first]) % LANES
            coded.estimates[first], coded.uppers[first] = scratch[lane], scratch[LANES + lane]
            first += 1


@inline
def refine(sketch, coded, ids, count):
    width, planes, factors = sketch.fine_width, coded.planes, coded.factors
    low, query_sum = shift(planes, sketch.plane), int(factors[FINE_SUM])
    for i in range(0, count, FOUR):
        i0, i1, i2, i3 = four_from(i, count)
        s0, s1, s2, s3 = _four_rows(
            shift(sketch.fine, ids[i0] * width), shift(sketch.fine, ids[i1] * width),
            shift(sketch.fine, ids[i2] * width), shift(sketch.fine, ids[i3] * width),
            planes, low, width // (4 * LANES),
        )  # fmt: skip
        store_totals(coded.estimates, i, s0, s1, s2, s3, query_sum)
    for i in range(count):
        row = np.int64(ids[i])
        extras = as_float32(shift(sketch.fine, (row + 1) * width - EXTRA))
        coded.uppers[i], coded.rests[i] = extras[0], extras[1]
        coded.biases[i] = sketch.bias[row]
    scale, error = splat32(factors[SCALE]), splat32(factors[FINE_ERROR])
    rest = splat32(factors[FINE_REST])
    for i in range(0, count, LANES):
        scales = load(coded.uppers, i)
        estimates = multiply_add(scales, load(coded.estimates, i) * scale, load(coded.biases, i))
        upper = multiply_add(load(coded.rests, i), rest, estimates)
        store(coded.estimates, i, estimates)
        store(coded.uppers, i, multiply_add(scales, error, upper))
