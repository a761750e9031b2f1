"""Bounds of logits from coarse or fine codes: sketch.py.

Shape letters: V vocabulary, F coordinates in `coarse`, T bytes of a row in `fine`.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, splice
from logitsieve.kernels.simd.byte_lanes import (
    AVX_VNNI,
    FORM,
    NEON_DOT,
    OFFSET,
    join_planes,
    multiply_bytes,
    multiply_row,
    scale_sums,
    store_totals,
    zero_sums,
)
from logitsieve.kernels.simd.dots import four_from
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    load_first,
    multiply_add,
    splat32,
    store,
    zeros32,
)
from logitsieve.kernels.simd.pointers import as_float32, as_uint16, shift
from logitsieve.kernels.sketch.levels import (
    FULL,
    HEAD_SCALE,
    LevelFactors,
    drop_sixteen,
    first_level,
    last_level,
    level_queue_at,
    middle_estimate,
    middle_level,
    middle_upper,
    number_lanes,
    queue_rows,
)
from logitsieve.kernels.sketch.sketch import (
    ERROR,
    EXTRA,
    FINE_ERROR,
    FINE_REST,
    FINE_SUM,
    FIRST_ERROR,
    MIDDLE_ERROR,
    REST,
    SCALE,
    SUM,
    TAIL_ADDED,
    TAIL_SCALE,
)
from logitsieve.kernels.topk.queries import CHUNK

FOUR = 4  # groups per step
IN_PAIRS = FORM in (AVX_VNNI, NEON_DOT)  # sums of four groups fill all registers
AT_MOST = CHUNK + FULL + (FOUR + 1) * LANES  # rows per call of `refine`
REFINED_SCRATCH = 2 * AT_MOST

CoarseFactors = namedtuple("CoarseFactors", "sum scale error rest levels")
# float32 [AT_MOST] each; `rests` and `biases` are scratch of `refine`.
Refined = namedtuple("Refined", "estimates uppers rests biases")


@inline
def coarse_factors(factors):
    """Return the factors of coarse bounds in every lane, so stores do not force reloads."""
    return CoarseFactors(
        int(factors[SUM]),
        splat32(np.float32(factors[SCALE])),
        splat32(np.float32(factors[ERROR])),
        splat32(np.float32(factors[REST])),
        _level_factors(factors),
    )


@inline
def _level_factors(factors):
    total, added = int(factors[FINE_SUM]), int(factors[TAIL_ADDED])
    return LevelFactors(
        total + 2 * added,
        3 * total + 6 * added,
        (OFFSET - 128) * total,
        np.float32(3 * total),
        splat32(np.float32(factors[TAIL_SCALE])),
        splat32(np.float32(factors[REST])),
        splat32(np.float32(factors[FIRST_ERROR])),
        splat32(np.float32(factors[MIDDLE_ERROR])),
        splat32(np.float32(factors[FINE_ERROR])),
    )


@inline
def bound_four(sketch, planes, query, group, end):
    """Return (estimates, bounds) of four groups, sharing the loads of the query.

    With levels they are those of the second level. Groups from `end` on repeat the last group.
    Places beyond V have undefined bounds.
    """
    sums = sum_four(sketch, planes, group, end)
    group, second, third, fourth = four_from(group, end)
    return (
        _bound_group(sketch, planes, query, group, sums[0]),
        _bound_group(sketch, planes, query, second, sums[1]),
        _bound_group(sketch, planes, query, third, sums[2]),
        _bound_group(sketch, planes, query, fourth, sums[3]),
    )


@inline
def sum_four(sketch, planes, group, end):
    size, low = sketch.group_bytes, shift(planes, sketch.plane)
    group, second, third, fourth = four_from(group, end)
    rows0, rows1 = shift(sketch.coarse, group * size), shift(sketch.coarse, second * size)
    rows2, rows3 = shift(sketch.coarse, third * size), shift(sketch.coarse, fourth * size)
    zero = zero_sums(), zero_sums()
    s0, s1, s2, s3 = zero, zero, zero, zero
    for quad in range(sketch.coarse_width // 4):
        s0 = multiply_bytes(s0, rows0, planes, low, quad)
        s1 = multiply_bytes(s1, rows1, planes, low, quad)
        if not IN_PAIRS:
            s2 = multiply_bytes(s2, rows2, planes, low, quad)
            s3 = multiply_bytes(s3, rows3, planes, low, quad)
    for quad in range(sketch.coarse_width // 4 if IN_PAIRS else 0):
        s2 = multiply_bytes(s2, rows2, planes, low, quad)
        s3 = multiply_bytes(s3, rows3, planes, low, quad)
    return join_planes(s0), join_planes(s1), join_planes(s2), join_planes(s3)


@inline
def _bound_group(sketch, planes, query, group, sums):
    if sketch.tail_width > 0:
        base, above = base_of(sketch, query, group, sums)
        twice, _ = first_level(sketch, planes, query.levels, above, group)
        middle = middle_level(sketch, planes, twice, group)
        return (
            middle_estimate(query.levels, middle, base),
            middle_upper(query.levels, middle, above),
        )
    extras = shift(sketch.coarse, group * sketch.group_bytes + LANES * sketch.coarse_width)
    return _bound_steep(as_float32(extras), query, sums)


@inline
def _bound_steep(extras, query, sums):
    scales, rests, bias = load(extras, 0), load(extras, LANES), load(extras, 2 * LANES)
    estimates = multiply_add(scales, scale_sums(sums, query.sum, query.scale), bias)
    upper = multiply_add(rests, query.rest, estimates)
    return estimates, multiply_add(scales, query.error, upper)


@inline
def base_of(sketch, query, group, sums):
    codes = LANES * (sketch.coarse_width + sketch.tail_width // 8)
    numbers = as_uint16(shift(sketch.coarse, group * sketch.group_bytes + codes))
    scales = number_lanes(sketch, numbers, 0, HEAD_SCALE)
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
def refined_at(scratch):
    first = as_float32(scratch)
    return Refined(
        first, shift(first, AT_MOST), shift(first, 2 * AT_MOST), shift(first, 3 * AT_MOST)
    )


@inline
def refine_places(sketch, planes, factors, places, count, ids, refined):
    """Write the rows at places[:count] to `ids`, and their estimates and bounds from fine codes.

    With levels, one place costs nearly as much as its whole group.
    """
    for i in range(count):
        ids[i] = sketch.order[places[i]]
    if sketch.tail_width > 0:
        _refine_levels(sketch, planes, factors, places, count, refined)
    else:
        refine(sketch, planes, factors, ids, count, refined)


@splice
def _refine_levels(sketch, planes, factors, places, count, refined):
    query, queue = coarse_factors(factors), level_queue_at(refined.rests)
    first = queued = done = 0
    while first < count:
        group, mask = np.int64(places[first]) // LANES, np.int64(0)
        while first < count and np.int64(places[first]) // LANES == group:
            bit = np.int64(1) << (np.int64(places[first]) % LANES)
            if bit <= mask:
                break
            mask |= bit
            first += 1
        sums = sum_four(sketch, planes, group, group + 1)
        base = base_of(sketch, query, group, sums[0])
        twice, _ = first_level(sketch, planes, query.levels, base[1], group)
        middle = middle_level(sketch, planes, twice, group)
        queued = queue_rows(sketch, query.levels, middle, base, group, mask, queue, queued)
        while queued >= FULL or (queued > 0 and first == count):
            estimate, upper = last_level(sketch, planes, query.levels, queue, min(queued, LANES))
            store(refined.estimates, done, estimate)
            store(refined.uppers, done, upper)
            done += LANES
            queued = drop_sixteen(queue, queued)


@inline
def refine(sketch, planes, factors, ids, count, refined):
    """Write estimates and bounds of the rows ids[:count] from their fine codes; not with levels."""
    width, low = sketch.fine_width, shift(planes, sketch.plane)
    query_sum = int(factors[FINE_SUM])
    pieces = width // (4 * LANES)
    for i in range(0, count, FOUR):
        i0, i1, i2, i3 = four_from(i, count)
        row0, row1 = shift(sketch.fine, ids[i0] * width), shift(sketch.fine, ids[i1] * width)
        row2, row3 = shift(sketch.fine, ids[i2] * width), shift(sketch.fine, ids[i3] * width)
        zero = zero_sums(), zero_sums()
        s0, s1, s2, s3 = zero, zero, zero, zero
        for piece in range(pieces):
            s0 = multiply_row(s0, row0, planes, low, piece)
            s1 = multiply_row(s1, row1, planes, low, piece)
            if not IN_PAIRS:
                s2 = multiply_row(s2, row2, planes, low, piece)
                s3 = multiply_row(s3, row3, planes, low, piece)
        for piece in range(pieces if IN_PAIRS else 0):
            s2 = multiply_row(s2, row2, planes, low, piece)
            s3 = multiply_row(s3, row3, planes, low, piece)
        store_totals(
            refined.estimates, i,
            join_planes(s0), join_planes(s1), join_planes(s2), join_planes(s3), query_sum,
        )  # fmt: skip
    for i in range(count):
        row = np.int64(ids[i])
        extras = as_float32(shift(sketch.fine, (row + 1) * width - EXTRA))
        refined.uppers[i], refined.rests[i] = extras[0], extras[1]
        refined.biases[i] = sketch.bias[row]
    scale, error = splat32(np.float32(factors[SCALE])), splat32(np.float32(factors[FINE_ERROR]))
    rest = splat32(np.float32(factors[FINE_REST]))
    for i in range(0, count, LANES):
        scales = load(refined.uppers, i)
        dots = multiply_add(load(refined.estimates, i), scale, zeros32())
        estimates = multiply_add(scales, dots, load(refined.biases, i))
        upper = multiply_add(load(refined.rests, i), rest, estimates)
        store(refined.estimates, i, estimates)
        store(refined.uppers, i, multiply_add(scales, error, upper))
