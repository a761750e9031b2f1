"""Uniform numbers and draws without replacement, by counter."""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.philox import random_bits, uniform
from logitsieve.types.results import Float64, Int64

EMPTY = -1
SCATTER = np.uint64(0x9E3779B97F4A7C15)


@kernel("(uint64, uint64, uint64, float64[::1])")
def fill_uniforms(key: int, step: int, draw: int, out: Float64) -> None:
    """Fill `out` with numbers in (0, 1), two for each place of the counter."""
    for i in range(0, out.size, 2):
        first, second = random_bits(key, step, draw, np.uint64(i // 2))
        out[i] = uniform(first)
        if i + 1 < out.size:
            out[i + 1] = uniform(second)


@inline
def _find(table, number):
    """The place in the table that holds `number`, or the empty one where it belongs."""
    mask = table.size - 1
    place = int((np.uint64(number) * SCATTER) >> np.uint64(32)) & mask
    while table[place] != EMPTY and table[place] != number:
        place = (place + 1) & mask
    return place


@kernel("(uint64, uint64, uint64, int64, int64[::1])")
def fill_distinct(key: int, step: int, draw: int, high: int, out: Int64) -> None:
    """Fill `out` with different numbers of 0 .. high-1; every set of them is equally likely.

    Floyd's algorithm (Bentley 1987, CACM 30(9)): one draw for each number, whatever the share, and
    a hash table twice their count, so no work in proportion to `high`.
    """
    size = 16
    while size < 2 * out.size:
        size *= 2
    table = np.full(size, EMPTY)
    for i in range(out.size):
        top = high - out.size + i
        bits, _ = random_bits(key, step, draw, np.uint64(i))
        number = min(int(uniform(bits) * (top + 1)), top)
        place = _find(table, number)
        if table[place] == number:
            number = top
            place = _find(table, number)
        table[place] = number
        out[i] = number
