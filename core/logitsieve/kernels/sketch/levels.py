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

from collections import namedtuple
from typing import NamedTuple

import numpy as np

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.lanes import LANES, multiply_add, prefetch, splat32
from logitsieve.kernels.simd.pointers import CACHE_LINE, as_uint16, shift
from logitsieve.kernels.simd.shorts import load_shorts
from logitsieve.kernels.simd.tables import (
    CHUNK_BYTES,
    CHUNK_COORDINATES,
    CHUNKS_AT_ONCE,
    add_bits,
    total_of_bits,
    zero_bits,
)

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
NUMBER_COUNT = len(NUMBERS)
STEP = 8  # index in `starts` of the step of their codes: simd/shorts.py
LEVEL_EXTRA = 4  # bytes of a row's two numbers
FOUR, AHEAD = 4, 4  # groups per step, and to prefetch ahead


class Level(NamedTuple):
    """A refinement of a tail: the first `bits` of each coordinate's code, as an odd integer."""

    name: str
    array: str  # of the part, with the bits that no level before it has
    bits: int
    planes: int  # the number of these bits
    scale: int  # the place of its scale in NUMBERS; that of its norm is the next

    @property
    def most(self) -> int:
        """Return the largest odd integer."""
        return (1 << self.bits) - 1

    @property
    def step(self) -> int:
        """Return the number of neighbouring codes that it does not tell apart."""
        return 1 << (CODE_BITS - self.bits)

    def group_bytes(self, padded: int) -> int:
        """Return the bytes of sixteen rows whose tails have `padded` coordinates."""
        return LANES * (self.planes * (padded // 8) + LEVEL_EXTRA)


CODE_BITS = 4  # of a coordinate of a tail
LEVELS = (
    Level("first level", "first", bits=1, planes=1, scale=FIRST_SCALE),
    Level("second level", "middle", bits=2, planes=1, scale=MIDDLE_SCALE),
    Level("last level", "fine", bits=4, planes=2, scale=LAST_SCALE),
)
LEVEL_COUNT = len(LEVELS)
NUMBERS_IN = "coarse", *(level.array for level in LEVELS)
# Constants of the kernels.
FIRST_PLANES, MIDDLE_PLANES, LAST_PLANES = (np.int64(level.planes) for level in LEVELS)
FIRST_MOST, MIDDLE_MOST, LAST_MOST = (np.float32(level.most) for level in LEVELS)

# A level of a query and a sketch, which has `size` bytes for each group: `planes` times a bit of
# each coordinate, then the numbers `scale` and the next. `error` is the query's E_b.
Read = namedtuple("Read", "codes size planes scale most error")


@inline
def levels_of(sketch, query):
    one, two, three = sizes_of(sketch)
    return (
        Read(sketch.first, one, FIRST_PLANES, FIRST_SCALE, FIRST_MOST, query.first_error),
        Read(sketch.middle, two, MIDDLE_PLANES, MIDDLE_SCALE, MIDDLE_MOST, query.middle_error),
        Read(sketch.fine, three, LAST_PLANES, LAST_SCALE, LAST_MOST, query.last_error),
    )


@inline
def sizes_of(sketch):
    """Return the bytes of each level of a group."""
    one, two = _size(sketch, FIRST_PLANES), _size(sketch, MIDDLE_PLANES)
    return one, two, _size(sketch, LAST_PLANES)


@inline
def _size(sketch, planes):
    return LANES * (planes * (sketch.tail_width // 8) + LEVEL_EXTRA)


@inline
def coarse_size(sketch):
    return LANES * (sketch.coarse_width + LEVEL_EXTRA)


@inline
def add_planes(sketch, level, tables, sums, group, ahead):
    """Return the sums of a level from those of the one before; prefetches as much from `ahead`."""
    chunks = sketch.tail_width // CHUNK_COORDINATES
    rows = codes_of(level, group)
    for plane in range(level.planes):
        place, sums = plane * chunks * CHUNK_BYTES, sums + sums
        for first in range(0, chunks, CHUNKS_AT_ONCE):
            bits = zero_bits()
            for pair in range(first // 2, min(first + CHUNKS_AT_ONCE, chunks) // 2):
                prefetch(ahead, place + 2 * CACHE_LINE * pair)
                prefetch(ahead, place + 2 * CACHE_LINE * pair + CACHE_LINE)
                bits = add_bits(bits, shift(rows, place), tables, pair)
            sums += total_of_bits(bits)
    prefetch(ahead, level.size - CACHE_LINE)
    return sums


@inline
def codes_of(level, group):
    return shift(level.codes, group * level.size)


@inline
def coarse_level(sketch, size):
    """Level 0, to prefetch `size` bytes of its groups."""
    return Read(sketch.coarse, size, np.int64(0), HEAD_SCALE, np.float32(0), splat32(0.0))


@inline
def prefetch_group(level, group):
    for place in range(0, level.size, CACHE_LINE):
        prefetch(level.codes, group * level.size + place)


@inline
def coarse_numbers(sketch, group):
    return group_numbers(sketch.coarse, coarse_size(sketch), group)


@inline
def group_numbers(codes, size, group):
    """Return the two numbers of each row of a group, which end its `size` bytes."""
    return as_uint16(shift(codes, (group + 1) * size - LANES * LEVEL_EXTRA))


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
def level_numbers(sketch, level, group):
    """Return the scales and the norms of a group's rows by a level."""
    numbers = group_numbers(level.codes, level.size, group)
    scales = number_lanes(sketch, numbers, 0, level.scale)
    return scales, number_lanes(sketch, numbers, LANES, level.scale + 1)


@inline
def level_bounds(level, query, sums, base, numbers):
    scaled = (sums + sums - level.most * query.total) * query.tail_scale
    return bounds_by(numbers[0], numbers[1], scaled, level.error, query.rest, base)
