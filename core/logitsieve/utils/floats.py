"""The float types that a matrix may have: widened exactly, narrowed with one rounding.

numpy has no bfloat16: everywhere here its bits are uint16, the upper half of a float32's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from logitsieve.api.results import Bool, Float32
from logitsieve.utils.dtypes import BY_NAME

STORED: dict[str, np.dtype[Any]] = {
    name: BY_NAME[name].numpy for name in ("float32", "float16", "bfloat16")
}
CODES = {name: BY_NAME[name].safetensors for name in STORED}
LARGEST = {"float32": 3.4028235e38, "float16": 65504.0, "bfloat16": 3.3895314e38}

EXPONENT = np.uint16(0x7F80)  # of bfloat16; all ones: NaN or infinity
LINE = 64  # bytes: a cache line, and the widest vector register


def widened(half: np.ndarray) -> Float32:
    """float32 of the same values, laid out at a multiple of 64 bytes, as kernels like it.

    `half` is float16 or the bits of bfloat16, of any shape; float32 is copied.
    """
    values = aligned(half.shape)
    if half.dtype == np.uint16:
        np.left_shift(half, np.uint32(16), out=values.view(np.uint32))
    else:
        np.copyto(values, half)
    return values


def aligned(shape: tuple[int, ...]) -> Float32:
    """An array of float32 that begins at a multiple of 64 bytes, not filled."""
    size = math.prod(shape)
    room = np.empty(size + LINE // 4, np.float32)
    skipped = -room.ctypes.data % LINE // 4
    return room[skipped : skipped + size].reshape(shape)


def finite(array: np.ndarray) -> Bool:
    """Mask of the numbers that are neither NaN nor infinite; uint16 is bits of bfloat16."""
    if array.dtype == np.uint16:
        return np.asarray(array & EXPONENT != EXPONENT)
    return np.asarray(np.isfinite(array))


def narrowed(values: np.ndarray, name: str) -> np.ndarray:
    """float32 or float64 as the type `name` of STORED, rounded once, to nearest, ties to even.

    What lies beyond the type's range becomes infinite.
    """
    with np.errstate(over="ignore"):
        if name != "bfloat16":
            return values.astype(STORED[name])
        bits = (_to_odd(values) if values.dtype == np.float64 else values).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16).astype(np.uint16)


def _to_odd(values: np.ndarray) -> Float32:
    """float64 cut to float32, the last bit set where anything was cut off.

    So a second rounding, to fewer bits, sees which side of a tie a number lay on.
    """
    near = values.astype(np.float32)
    wide, bits = near.astype(np.float64), near.view(np.uint32)
    bits -= np.abs(wide) > np.abs(values)
    bits |= wide != values
    return near
