"""Bounds of the levels of a sketch, from one, two and four bits of codes (docs/sketch.md).

A query's tail has integer codes g. The products of a row's codes q with g are exact in float32:

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

TAIL_QUANTUM = 64  # a tail is padded to a multiple of this many coordinates
APART = 512.0  # docs/sketch.md
# A row's numbers, two in each array.
NUMBERS = (
    HEAD_SCALE, TAIL_LENGTH, FIRST_SCALE, FIRST_NORM, MIDDLE_SCALE, MIDDLE_NORM, LAST_SCALE,
    LAST_NORM,
) = range(8)  # fmt: skip
NUMBER_COUNT = len(NUMBERS)
STEP = 8  # index in `starts` of the step of their codes (simd/shorts.py)
LEVEL_EXTRA = 4  # bytes of a row's two numbers
FOUR, AHEAD = 4, 4  # groups bounded together, and prefetched ahead


class Level(NamedTuple):
    """A refinement of a tail: the first `bits` of each coordinate's code, as an odd integer."""

    name: str
    array: str  # the part's array of the bits that this level adds
    bits: int
    planes: int  # the number of bits that it adds
    scale: int  # index in NUMBERS of its scale, which its norm follows

    @property
    def most(self) -> int:
        return (1 << self.bits) - 1

    @property
    def step(self) -> int:
        """The number of neighbouring codes that it does not tell apart."""
        return 1 << (CODE_BITS - self.bits)

    def group_bytes(self, padded: int) -> int:
        return LANES * (self.planes * (padded // 8) + LEVEL_EXTRA)


CODE_BITS = 4
LEVELS = (
    Level("first level", "first", bits=1, planes=1, scale=FIRST_SCALE),
    Level("second level", "middle", bits=2, planes=1, scale=MIDDLE_SCALE),
    Level("last level", "fine", bits=4, planes=2, scale=LAST_SCALE),
)
LEVEL_COUNT = len(LEVELS)
NUMBERS_IN = "coarse", *(level.array for level in LEVELS)
FIRST_PLANES, MIDDLE_PLANES, LAST_PLANES = (np.int64(level.planes) for level in LEVELS)
FIRST_MOST, MIDDLE_MOST, LAST_MOST = (np.float32(level.most) for level in LEVELS)

# A level for a query. A group has `size` bytes: `planes` times a bit of each coordinate, then two
# numbers of each row. `error` is the query's E_b.
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
    """Return a level's sums from those of the level before; prefetch the group at `ahead`."""
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
    """Return level 0 for `prefetch_group`, with `size` bytes of a group."""
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
    """Return the numbers of a group's rows, at the end of its `size` bytes."""
    return as_uint16(shift(codes, (group + 1) * size - LANES * LEVEL_EXTRA))


@inline
def number_lanes(sketch, numbers, offset, kind):
    return load_shorts(numbers, offset, sketch.starts[kind], sketch.starts[STEP])


@inline
def length_bounds(lengths, length, base):
    return multiply_add(lengths, length, base[1])


@inline
def uppers_by_lengths(sketch, query, base, group):
    """Bound a group by level 0: x.y <= ||x|| ||y|| for tails."""
    lengths = number_lanes(sketch, coarse_numbers(sketch, group), LANES, TAIL_LENGTH)
    return length_bounds(lengths, query.length, base)


@inline
def bounds_by(scales, rests, sums, error, rest, base):
    upper = multiply_add(rests, rest, multiply_add(scales, error + sums, base[1]))
    return multiply_add(scales, sums, base[0]), upper


@inline
def level_numbers(sketch, level, group):
    numbers = group_numbers(level.codes, level.size, group)
    scales = number_lanes(sketch, numbers, 0, level.scale)
    return scales, number_lanes(sketch, numbers, LANES, level.scale + 1)


@inline
def level_bounds(level, query, sums, base, numbers):
    scaled = (sums + sums - level.most * query.total) * query.tail_scale
    return bounds_by(numbers[0], numbers[1], scaled, level.error, query.rest, base)
