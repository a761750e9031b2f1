"""Uniform numbers by counter."""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float64
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.sampling.philox import random_bits, uniform


@kernel("(uint64, uint64, uint64, float64[::1])")
def fill_uniforms(key: int, step: int, draw: int, out: Float64) -> None:
    """Fill `out` with numbers in (0, 1), two for each place of the counter."""
    for i in range(0, out.size, 2):
        first, second = random_bits(key, step, draw, np.uint64(i // 2))
        out[i] = uniform(first)
        if i + 1 < out.size:
            out[i + 1] = uniform(second)
