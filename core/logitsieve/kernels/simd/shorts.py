"""Positive float32 numbers in sixteen bits.

Code c stands for the float32 with the bits start + (c << step), so codes rise with the numbers.
With a step of 10 the largest is 2^8 times the least, with 11 it is 2^16 times.
"""

from collections.abc import Iterator

import numpy as np
from llvmlite import ir
from numba import types

from logitsieve.api.results import Float32, Int32
from logitsieve.kernels.compile import emits
from logitsieve.kernels.simd.lanes import FLOATS, INT16, INTEGERS, LANES, LANES32, spread, vector_at

LAST = (1 << 16) - 1  # code
STEPS = (10, 11)
INFINITE = int(np.float32(np.inf).view(np.int32))


@emits(lambda start, *_: LANES32(start, types.intp, types.int32, types.int32))
def load_shorts(builder, start, offset, first, step):
    """Decode the uint16 codes start[offset : offset + 16]."""
    address = vector_at(builder, start, offset, ir.VectorType(INT16, LANES))
    codes = builder.zext(builder.load(address, align=1), INTEGERS)
    bits = builder.shl(codes, spread(builder, step, INTEGERS))
    return builder.bitcast(builder.add(bits, spread(builder, first, INTEGERS)), FLOATS)


def start_of(values: Float32, step: int, least: float) -> int:
    """Return the bits of code 0, at least those of `least`; the last code reaches all values."""
    wide = 1 << step
    most = int(np.max(values, initial=np.float32(least)).view(np.int32))
    highest = min(-(-most // wide) * wide, (INFINITE - 1) // wide * wide)
    lowest = -(-int(np.float32(least).view(np.int32)) // wide) * wide
    return max(highest - LAST * wide, lowest)


def step_of(columns: Iterator[Float32], least: float) -> int:
    """Return the finer step if its codes reach all values above `least` of every column."""
    fine, wide = STEPS
    for values in columns:
        above = values[values > np.float32(least)]
        if above.size and int(above.min().view(np.int32)) < start_of(values, fine, least):
            return wide
    return fine


def shorts_of(values: Float32, start: int, step: int, *, up: bool) -> np.ndarray:
    """Return the nearest codes or, with `up`, the least codes of numbers not below `values`."""
    bits = np.ascontiguousarray(values).view(np.int32).astype(np.int64) - start
    codes = (bits + ((1 << step) - 1 if up else 1 << (step - 1))) >> step
    return np.clip(codes, 0, LAST).astype(np.uint16)


def floats_of(codes: np.ndarray, start: int | Int32, step: int | Int32) -> Float32:
    bits: np.ndarray = (codes.astype(np.int32) << np.int32(step)) + np.int32(start)
    return bits.view(np.float32)
