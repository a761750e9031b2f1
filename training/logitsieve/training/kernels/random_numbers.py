"""Random numbers by counter: each depends on a key and a place, on no order of draws."""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.sampling.philox import random_bits, uniform


@kernel("(uint64, uint64, uint64, float64[::1])")
def fill_uniforms(key: int, step: int, draw: int, out: Float64) -> None:
    """Fill `out` with numbers in (0, 1), two for each place of the counter."""
    for i in range(0, out.size, 2):
        first, second = random_bits(key, step, draw, np.uint64(i // 2))
        out[i] = uniform(first)
        if i + 1 < out.size:
            out[i + 1] = uniform(second)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@inline
def mixed(key, place):
    """The uint64 of a place: SplitMix64's output (Steele, Lea, Flood 2014) from `key` on."""
    bits = key + (np.uint64(place) + np.uint64(1)) * GOLDEN
    bits = (bits ^ (bits >> SHIFTS[0])) * FACTORS[0]
    bits = (bits ^ (bits >> SHIFTS[1])) * FACTORS[1]
    return bits ^ (bits >> SHIFTS[2])
