"""Bounds for one query of a batch, from the sums and numbers of batch.py."""

import numpy as np

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.amx import LINE, TILE_BYTES, load_floats, load_sums
from logitsieve.kernels.simd.byte_lanes import join_planes
from logitsieve.kernels.simd.lanes import LANES, load, store, zeros32
from logitsieve.kernels.simd.masks import lanes_not_below
from logitsieve.kernels.sketch.batch import PAIRS, QUERIES, TILE
from logitsieve.kernels.sketch.bounds import base_bounds, biases_of, store_base, store_ends
from logitsieve.kernels.sketch.levels import (
    AHEAD,
    HEAD_SCALE,
    coarse_level,
    coarse_size,
    length_bounds,
    level_bounds,
    levels_of,
    prefetch_group,
)
from logitsieve.kernels.topk.allowed import group_bits


@inline
def _numbers_of(batch, kind, slot):
    first, second = (kind * TILE + slot) * LANES, ((kind + 1) * TILE + slot) * LANES
    return load(batch.numbers, first), load(batch.numbers, second)


@inline
def pass_batch(own):
    """Bound a tile by level 0, and by the next two levels if they are ready.

    Returns how many levels were ready, and how many groups have rows left after each.
    """
    sketch, batch, query, tile, q = own.sketch, own.batch, own.query, own.tile, own.q
    first, threshold, summed = own.first, own.threshold, own.summed
    one, two, _ = levels_of(sketch, query)
    alone, both = batch.ready[0] != 0, batch.ready[1] != 0
    done = 2 if both or batch.ready[2] != 0 else 1 if alone else 0
    zero = coarse_level(sketch, coarse_size(sketch))
    zeroth, once, count = np.int64(0), np.int64(0), np.int64(0)
    for group in range(first, own.last):
        slot = group - first
        scales, lengths = _numbers_of(batch, HEAD_SCALE, slot)
        base = base_bounds(scales, biases_of(sketch, group), query, coarse_sums(batch, q, slot))
        ends, sums = (base[0], length_bounds(lengths, query.length, base)), zeros32()
        mask = lanes_not_below(ends[1], threshold) & group_bits(own.allowed, group)
        tile.read[slot] = mask
        zeroth += mask != 0
        if alone:
            sums, bounds = _bounds_by(batch, one, query, q, 0, slot, sums, base)
            ends = bounds if summed and mask != 0 else ends
            mask &= lanes_not_below(bounds[1], threshold)
        once += mask != 0
        if both:
            sums, bounds = _bounds_by(batch, two, query, q, 1, slot, sums, base)
            ends = bounds if summed and mask != 0 else ends
            mask &= lanes_not_below(bounds[1], threshold)
        tile.masks[slot], tile.left[count] = mask, group
        if mask != 0:
            if done == 0 and count < AHEAD:
                prefetch_group(one, group)
            count += 1
        if slot % batch.count == q:  # queries share the prefetches for the next tile
            prefetch_group(zero, group + own.beyond - first)
        store_base(tile, slot, base, ends[1], False)
        store(tile.sums, LANES * slot, sums)
        if summed:
            store_ends(tile, slot, *ends)
    return done, zeroth, once, count


@inline
def _bounds_by(batch, level, query, q, place, slot, sums, base):
    sums = more_sums(batch, level, q, place, slot, sums)
    numbers = _numbers_of(batch, level.scale, slot)
    return sums, level_bounds(level, query, sums, base, numbers)


@inline
def coarse_sums(batch, q, slot):
    place = (q // PAIRS * TILE + slot) * TILE_BYTES + 2 * LINE * (q % PAIRS)
    return join_planes((load_sums(batch.bases, place), load_sums(batch.bases, place + LINE)))


@inline
def more_sums(batch, level, q, place, slot, sums):
    """Return a level's sums from those of the level before, like `add_planes`."""
    one = (place * batch.sets + q // QUERIES) * TILE + slot
    added = load_floats(batch.sums, one * TILE_BYTES + LINE * (q % QUERIES))
    return sums * np.float32(1 << level.planes) + added
