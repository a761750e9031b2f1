"""Bounds from codes of one, two and four bits that refine each other: the levels of a sketch.

docs/levels.md derives them. The first F of a row's P coordinates have eight-bit codes; the tail x
of T others is rotated at random and coded in four bits. A level reads the first 1, 2 or 4 of them:
odd integers q, with a scale s and a norm n. For the tail y of a query

    x.y = s q.y + e.y,      e = x - s q,      |e.y| <= reach n ||y||.

`reach` is 1 for certain bounds, less if bounds may fail with a small probability (encode_query.py).
The tail of a query has eight-bit codes g, and sums are exact:

    q.g = 2 B - S,    4 B + 2 C - 3 S,    16 B + 8 C + 2 L - 15 S

B and C sum g over the set first and second bits, L sums the last two bits times g, and S sums g.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.simd.byte_lanes import multiply_crumbs, scale_sums, store_totals, zero_sums
from logitsieve.kernels.simd.dots import four_from, row_of
from logitsieve.kernels.simd.lanes import LANES, load, multiply_add, prefetch, splat32, store
from logitsieve.kernels.simd.masks import lowest_bit
from logitsieve.kernels.simd.pointers import (
    as_float32,
    as_int8,
    as_int32,
    as_uint8,
    as_uint16,
    shift,
)
from logitsieve.kernels.simd.shorts import load_shorts
from logitsieve.kernels.simd.tables import (
    CHUNK_BYTES,
    CHUNK_COORDINATES,
    CHUNKS_AT_ONCE,
    add_bits,
    sums_of_words,
    zero_words,
)

LEVELS = 3
TAIL_QUANTUM = 64  # coordinates: a tail is padded to a multiple
# Stored norms are at least APART times the share of an error without a uniform direction, and a
# query's reach is larger by 1 / APART.
APART = 512.0
# A row's numbers: the scale of its first coordinates, then scales and norms of the levels.
NUMBERS = (
    HEAD_SCALE, FIRST_SCALE, FIRST_NORM, MIDDLE_SCALE, MIDDLE_NORM, LAST_SCALE, LAST_NORM,
) = range(7)  # fmt: skip
STEP = 7  # index in `starts` of the step of their codes: simd/shorts.py
COARSE_NUMBERS, LEVEL_NUMBERS = 3, 2  # per row in `coarse`, and in `middle` or `fine`

# Rows waiting for the last level: int32 places, float32 sums of two bits, estimates and bounds of
# the first coordinates; scratch for a group or sixteen rows.
LevelQueue = namedtuple("LevelQueue", "places sums bases uppers group totals scales rests")
FOUR = 4  # groups per step
FULL = 2 * LANES  # rows: by then the codes of the first sixteen have been prefetched
LINE = 64  # bytes
AHEAD = 4  # groups to prefetch ahead


@inline
def level_queue_at(start):
    most = FULL + LANES
    return LevelQueue(
        as_int32(start), shift(start, most), shift(start, 2 * most), shift(start, 3 * most),
        shift(start, 4 * most), shift(start, 5 * most), shift(start, 5 * most + LANES),
        shift(start, 5 * most + 2 * LANES),
    )  # fmt: skip


@inline
def _bits(rows, tables, chunks, later, lines):
    total = zero_sums()
    for first in range(0, chunks, CHUNKS_AT_ONCE):
        sums = zero_words()
        for chunk in range(first, min(first + CHUNKS_AT_ONCE, chunks)):
            for line in range(lines):
                prefetch(later, LINE * (lines * chunk + line))
            sums = add_bits(sums, rows, tables, chunk)
        total += sums_of_words(sums)
    return total


@inline
def first_sums(sketch, planes, group):
    rows = shift(sketch.coarse, group * sketch.group_bytes + LANES * sketch.coarse_width)
    chunks, later = sketch.tail_width // CHUNK_COORDINATES, shift(rows, AHEAD * sketch.group_bytes)
    bits = _bits(rows, tables_of(sketch, planes), chunks, later, 2)
    return bits + bits


@inline
def first_upper(sketch, query, twice, above, group):
    sums, numbers = scale_sums(twice, query.first, query.scale), coarse_numbers(sketch, group)
    scales = number_lanes(sketch, numbers, LANES, FIRST_SCALE)
    rests = number_lanes(sketch, numbers, 2 * LANES, FIRST_NORM)
    return bounded(scales, sums, query.first_error, rests, query.rest, above)


@inline
def coarse_numbers(sketch, group):
    codes = LANES * (sketch.coarse_width + sketch.tail_width // 8)
    return as_uint16(shift(sketch.coarse, group * sketch.group_bytes + codes))


@inline
def number_lanes(sketch, numbers, offset, kind):
    return load_shorts(numbers, offset, sketch.starts[kind], sketch.starts[STEP])


@inline
def bounded(scales, sums, error, rests, rest, base):
    return multiply_add(rests, rest, multiply_add(scales, error + sums, base))


@inline
def tables_of(sketch, planes):
    return as_uint8(shift(planes, 2 * sketch.coarse_width + 2 * sketch.tail_width))


@inline
def middle_level(sketch, planes, twice, group):
    """Return (sums of two bits, scales, norms) of a group, from twice the sums of one."""
    chunks = sketch.tail_width // CHUNK_COORDINATES
    size = LANES * (sketch.tail_width // 8 + 2 * LEVEL_NUMBERS)
    rows = shift(sketch.middle, group * size)
    bits = _bits(rows, tables_of(sketch, planes), chunks, shift(rows, AHEAD * size), 1)
    numbers, half = as_uint16(shift(rows, chunks * CHUNK_BYTES)), twice + bits
    scales = number_lanes(sketch, numbers, 0, MIDDLE_SCALE)
    return half + half, scales, number_lanes(sketch, numbers, LANES, MIDDLE_NORM)


@inline
def middle_upper(query, middle, base):
    sums, scales, rests = middle
    sums = scale_sums(sums, query.middle, query.scale)
    return bounded(scales, sums, query.middle_error, rests, query.rest, base)


@inline
def middle_estimate(query, middle, base):
    sums, scales, _ = middle
    return multiply_add(scales, scale_sums(sums, query.middle, query.scale), base)


@inline
def queue_rows(sketch, query, middle, base, group, mask, queue, count):
    """Append the lanes in `mask` to a queue of `count` rows, prefetch their codes; return its size.

    `base` is `base_of` the group.
    """
    sums, _, _ = middle
    store(queue.group, 0, scale_sums(sums, query.middle, splat32(1)))
    store(queue.group, LANES, base[0])
    store(queue.group, 2 * LANES, base[1])
    while mask:
        lane = lowest_bit(mask)
        mask &= mask - 1
        queue.places[count] = group * LANES + lane
        queue.sums[count] = queue.group[lane]
        queue.bases[count] = queue.group[LANES + lane]
        queue.uppers[count] = queue.group[2 * LANES + lane]
        row = shift(sketch.fine, (group * LANES + lane) * sketch.fine_width)
        for line in range(0, sketch.fine_width, LINE):
            prefetch(row, line)
        prefetch(row, sketch.fine_width - 1)
        count += 1
    return count


@inline
def _fine_row(sketch, queue, i):
    return row_of(sketch.fine, np.int64(queue.places[i]), sketch.fine_width)


@inline_once
def last_level(sketch, planes, query, queue, count):
    """Return estimates and upper bounds of the first `count` <= 16 rows of a queue."""
    first = as_int8(shift(planes, 2 * sketch.plane))
    second = shift(first, sketch.tail_width)
    for i in range(0, count, 4):
        i0, i1, i2, i3 = four_from(i, count)
        row0, row1 = _fine_row(sketch, queue, i0), _fine_row(sketch, queue, i1)
        row2, row3 = _fine_row(sketch, queue, i2), _fine_row(sketch, queue, i3)
        s0, s1, s2, s3 = zero_sums(), zero_sums(), zero_sums(), zero_sums()
        for piece in range(sketch.tail_width // TAIL_QUANTUM):
            s0 = multiply_crumbs(s0, row0, first, second, piece)
            s1 = multiply_crumbs(s1, row1, first, second, piece)
            s2 = multiply_crumbs(s2, row2, first, second, piece)
            s3 = multiply_crumbs(s3, row3, first, second, piece)
        store_totals(queue.totals, i, s0, s1, s2, s3, query.last)
    scales, rests, starts = as_int32(queue.scales), as_int32(queue.rests), sketch.starts
    for i in range(count):
        numbers = as_uint16(shift(_fine_row(sketch, queue, i), sketch.tail_width // 4))
        # Integers below 2^24.
        queue.totals[i] = 4 * queue.sums[i] + 2 * queue.totals[i] - query.thrice
        scales[i] = starts[LAST_SCALE] + (np.int32(numbers[0]) << starts[STEP])
        rests[i] = starts[LAST_NORM] + (np.int32(numbers[1]) << starts[STEP])
    return last_bounds(query, queue)


@inline
def last_bounds(query, queue):
    sums, scales = load(queue.totals, 0) * query.scale, load(queue.scales, 0)
    rests, above = load(queue.rests, 0), load(queue.uppers, 0)
    upper = bounded(scales, sums, query.last_error, rests, query.rest, above)
    return multiply_add(scales, sums, load(queue.bases, 0)), upper


@inline
def drop_sixteen(queue, count):
    places = as_float32(queue.places)
    for i in range(0, FULL, LANES):
        store(places, i, load(places, i + LANES))
        store(queue.sums, i, load(queue.sums, i + LANES))
        store(queue.bases, i, load(queue.bases, i + LANES))
        store(queue.uppers, i, load(queue.uppers, i + LANES))
    return max(count - LANES, 0)
