from typing import Any

import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.sampling.philox import bits_of, rest_lanes, uniform
from logitsieve.kernels.simd.lanes import store
from logitsieve.kernels.simd.pointers import pointer


@kernel("(uint64, uint64, uint64, int64, float32[::1], float64[::1])")
def fill(seed: Any, step: Any, draw: Any, first: Any, rest: Any, uniforms: Any) -> None:
    store(pointer(rest), 0, rest_lanes(seed, step, draw, first))
    for i in range(16):
        uniforms[i] = uniform(bits_of(seed, step, draw, first + i))


@pytest.mark.parametrize("first", [0, 16, 250_000 * 16, (1 << 31) - 16])
@pytest.mark.parametrize("seed", [0, 1, (1 << 64) - 1, 0x1234_5678_9ABC_DEF0])
def test_they_are_at_most_what_is_left_of_one(first: int, seed: int) -> None:
    rest, uniforms = np.empty(16, np.float32), np.empty(16)
    for step, draw in ((0, 0), (1 << 40, 3), ((1 << 64) - 1, (1 << 20) - 1)):
        fill(np.uint64(seed), np.uint64(step), np.uint64(draw), first, rest, uniforms)
        left = 1 - uniforms
        assert (rest <= left * (1 + 2.0**-24)).all()
        assert (rest >= left * (1 - 2.0**-24) - 2.0**-31).all()
        assert (rest >= 0).all()
