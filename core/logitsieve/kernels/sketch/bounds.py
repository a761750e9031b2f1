"""Bounds of the logits of groups of sixteen rows, from codes."""

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.simd.byte_lanes import (
    AVX_VNNI,
    FORM,
    NEON_DOT,
    join_planes,
    multiply_bytes,
    scale_sums,
    zero_sums,
)
from logitsieve.kernels.simd.dots import four_from, row_of
from logitsieve.kernels.simd.lanes import LANES, load, load_first, multiply_add, store, zeros32
from logitsieve.kernels.simd.masks import lanes_not_below
from logitsieve.kernels.simd.pointers import shift
from logitsieve.kernels.sketch.encode_query import factors_of
from logitsieve.kernels.sketch.levels import (
    AHEAD,
    FOUR,
    HEAD_SCALE,
    add_planes,
    coarse_numbers,
    coarse_size,
    codes_of,
    level_bounds,
    level_numbers,
    levels_of,
    number_lanes,
    uppers_by_lengths,
)

IN_PAIRS = FORM in (AVX_VNNI, NEON_DOT)  # sums of four groups fill all registers


@inline
def sum_four(sketch, planes, group, end):
    """Return the sums of coarse codes of four groups before `end`, which share a query's loads."""
    coarse, size, low = sketch.coarse, coarse_size(sketch), shift(planes, sketch.coarse_width)
    g0, g1, g2, g3 = four_from(group, end)
    r0, r1 = row_of(coarse, g0, size), row_of(coarse, g1, size)
    r2, r3 = row_of(coarse, g2, size), row_of(coarse, g3, size)
    zero, steps = (zero_sums(), zero_sums()), sketch.coarse_width // 4
    s0, s1, s2, s3 = zero, zero, zero, zero
    for step in range(steps):
        s0 = multiply_bytes(s0, r0, planes, low, step)
        s1 = multiply_bytes(s1, r1, planes, low, step)
        if not IN_PAIRS:
            s2 = multiply_bytes(s2, r2, planes, low, step)
            s3 = multiply_bytes(s3, r3, planes, low, step)
    for step in range(steps if IN_PAIRS else 0):
        s2 = multiply_bytes(s2, r2, planes, low, step)
        s3 = multiply_bytes(s3, r3, planes, low, step)
    return join_planes(s0), join_planes(s1), join_planes(s2), join_planes(s3)


@inline
def bound_four(sketch, planes, query, group, end, estimates, uppers):
    """Store level 0's bounds of four groups before `end`; bounds of rows beyond V are undefined."""
    places, sums = four_from(group, end), sum_four(sketch, planes, group, end)
    for i in range(FOUR):
        base = base_of(sketch, query, places[i], sums[i])
        store(estimates, places[i] * LANES, base[0])
        upper = uppers_by_lengths(sketch, query, base, places[i])
        store(uppers, places[i] * LANES, upper)


@inline
def base_of(sketch, query, group, sums):
    """Return a group's estimates and upper bounds without the tail."""
    scales = number_lanes(sketch, coarse_numbers(sketch, group), 0, HEAD_SCALE)
    return base_bounds(scales, biases_of(sketch, group), query, sums)


@inline
def biases_of(sketch, group):
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
def store_bases(sketch, coded, query, group, end, threshold, always, tile, slot):
    """Return a bit for each row of four groups before `end` that level 0 leaves at `threshold`.

    If it leaves one, or `always`, stores `base_of` of the groups from `slot` on.
    """
    (g0, g1, g2, g3), sums = four_from(group, end), sum_four(sketch, coded.planes, group, end)
    b0, b1 = base_of(sketch, query, g0, sums[0]), base_of(sketch, query, g1, sums[1])
    b2, b3 = base_of(sketch, query, g2, sums[2]), base_of(sketch, query, g3, sums[3])
    u0, u1 = uppers_by_lengths(sketch, query, b0, g0), uppers_by_lengths(sketch, query, b1, g1)
    u2, u3 = uppers_by_lengths(sketch, query, b2, g2), uppers_by_lengths(sketch, query, b3, g3)
    reached = lanes_not_below(u0, threshold) | lanes_not_below(u1, threshold) << LANES
    reached |= lanes_not_below(u2, threshold) << 2 * LANES
    reached |= lanes_not_below(u3, threshold) << 3 * LANES
    if reached != 0 or always:
        store_base(tile, slot, b0, u0, always)
        store_base(tile, slot + 1, b1, u1, always)
        store_base(tile, slot + 2, b2, u2, always)
        store_base(tile, slot + 3, b3, u3, always)
    return reached


@inline
def store_base(tile, slot, base, upper, ends):
    store(tile.bases, 2 * LANES * slot, base[0])
    store(tile.bases, 2 * LANES * slot + LANES, base[1])
    if ends:
        store_ends(tile, slot, base[0], upper)


@inline
def store_ends(tile, slot, estimate, upper):
    store(tile.ends, 2 * LANES * slot, estimate)
    store(tile.ends, 2 * LANES * slot + LANES, upper)


@inline_once
def bound_group(sketch, coded, group):
    """Return a group's estimates and bounds by the last level."""
    query, planes, sums = factors_of(coded.factors), coded.planes, zeros32()
    base = base_of(sketch, query, group, sum_four(sketch, planes, group, group + 1)[0])
    for level in levels_of(sketch, query):
        ahead = codes_of(level, min(group + AHEAD, sketch.groups - 1))
        sums = add_planes(sketch, level, coded.tables, sums, group, ahead)
    return level_bounds(level, query, sums, base, level_numbers(sketch, level, group))
