"""Bounds from codes of one, two and four bits that refine each other: the levels of a sketch.

docs/sketch.md derives them. The first F of a row's D coordinates have eight-bit codes; the tail x
of T others is rotated at random and coded in four bits. A level reads the first 1, 2 or 4 of them:
odd integers q, with a scale s and a norm n. For the tail y of a query

    x.y = s q.y + e.y,      e = x - s q,      |e.y| <= reach n ||y||.

`reach` is 1 for certain bounds, less if bounds may fail with a small probability (encode_query.py).
A query's tail has integer codes g, and sums are exact in float32:

    q.g = 2 B - S,    4 B + 2 C - 3 S,    16 B + 8 C + 4 K + 2 L - 15 S

B, C, K and L sum g over the set bits of a row, first to last, and S sums g. A group's sums are kept
as b = B + A, 2 b + C + A, and so on, where A makes the entries of tables positive.
"""

import numpy as np

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.lanes import LANES, multiply_add, prefetch, zeros32
from logitsieve.kernels.simd.pointers import as_uint8, as_uint16, shift
from logitsieve.kernels.simd.shorts import load_shorts
from logitsieve.kernels.simd.tables import (
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
# A row's numbers, two in each array: the scale of its first coordinates and the length of its tail,
# then scale and norm of each level.
NUMBERS = (
    HEAD_SCALE, TAIL_LENGTH, FIRST_SCALE, FIRST_NORM, MIDDLE_SCALE, MIDDLE_NORM, LAST_SCALE,
    LAST_NORM,
) = range(8)  # fmt: skip
NUMBERS_IN = "coarse", "first", "middle", "fine"
STEP = 8  # index in `starts` of the step of their codes: simd/shorts.py
LEVEL_EXTRA = 4  # bytes of a row's two numbers
FOUR, AHEAD = 4, 4  # groups per step, and to prefetch ahead
LINE = 64  # bytes


@inline
def _bits(rows, tables, chunks, later):
    """Return sums over one bit of each coordinate; prefetches as many bytes from `later` on."""
    total = zeros32()
    for first in range(0, chunks, CHUNKS_AT_ONCE):
        sums = zero_words()
        for chunk in range(first, min(first + CHUNKS_AT_ONCE, chunks)):
            prefetch(later, LINE * chunk)
            sums = add_bits(sums, rows, tables, chunk)
        total += sums_of_words(sums)
    return total


@inline
def _tables_of(sketch, planes):
    return as_uint8(shift(planes, 2 * sketch.coarse_width))


@inline
def first_sums(sketch, planes, group):
    size = _bits_size(sketch)
    return _ahead_bits(sketch, planes, shift(sketch.first, group * size), AHEAD * size)


@inline
def _bits_size(sketch):
    return LANES * (sketch.tail_width // 8 + LEVEL_EXTRA)


@inline
def _last_size(sketch):
    return LANES * (sketch.tail_width // 4 + LEVEL_EXTRA)


@inline
def coarse_size(sketch):
    return LANES * (sketch.coarse_width + LEVEL_EXTRA)


@inline
def middle_sums(sketch, planes, sums, group):
    size = _bits_size(sketch)
    bits = _ahead_bits(sketch, planes, shift(sketch.middle, group * size), AHEAD * size)
    return sums + sums + bits


@inline
def last_sums(sketch, planes, sums, group):
    size, plane = _last_size(sketch), LANES * sketch.tail_width // 8
    rows = shift(sketch.fine, group * size)
    sums += sums + _ahead_bits(sketch, planes, rows, AHEAD * size)
    return sums + sums + _ahead_bits(sketch, planes, shift(rows, plane), AHEAD * size)


@inline
def _ahead_bits(sketch, planes, rows, ahead):
    chunks = sketch.tail_width // CHUNK_COORDINATES
    return _bits(rows, _tables_of(sketch, planes), chunks, shift(rows, ahead))


@inline
def coarse_numbers(sketch, group):
    codes = LANES * sketch.coarse_width
    return as_uint16(shift(sketch.coarse, group * coarse_size(sketch) + codes))


@inline
def number_lanes(sketch, numbers, offset, kind):
    return load_shorts(numbers, offset, sketch.starts[kind], sketch.starts[STEP])


@inline
def length_bounds(lengths, length, base):
    return multiply_add(lengths, length, base[1])


@inline
def uppers_by_lengths(sketch, query, base, group):
    """Bound a group by level 0: no product of tails exceeds that of their lengths."""
    lengths = number_lanes(sketch, coarse_numbers(sketch, group), LANES, TAIL_LENGTH)
    return length_bounds(lengths, query.length, base)


@inline
def bounds_by(scales, rests, sums, error, rest, base):
    upper = multiply_add(rests, rest, multiply_add(scales, error + sums, base[1]))
    return multiply_add(scales, sums, base[0]), upper


@inline
def _level_bounds(sketch, query, numbers, scale, most, error, sums, base):
    scales = number_lanes(sketch, numbers, 0, scale)
    rests = number_lanes(sketch, numbers, LANES, scale + 1)
    scaled = (sums + sums - np.float32(most) * query.total) * query.tail_scale
    return bounds_by(scales, rests, scaled, error, query.rest, base)


@inline
def first_bounds(sketch, query, sums, base, group):
    end = (group + 1) * _bits_size(sketch)
    numbers = as_uint16(shift(sketch.first, end - LANES * LEVEL_EXTRA))
    return _level_bounds(sketch, query, numbers, FIRST_SCALE, 1, query.first_error, sums, base)


@inline
def middle_bounds(sketch, query, sums, base, group):
    end = (group + 1) * _bits_size(sketch)
    numbers = as_uint16(shift(sketch.middle, end - LANES * LEVEL_EXTRA))
    return _level_bounds(sketch, query, numbers, MIDDLE_SCALE, 3, query.middle_error, sums, base)


@inline
def last_bounds(sketch, query, sums, base, group):
    end = (group + 1) * _last_size(sketch)
    numbers = as_uint16(shift(sketch.fine, end - LANES * LEVEL_EXTRA))
    return _level_bounds(sketch, query, numbers, LAST_SCALE, 15, query.last_error, sums, base)
