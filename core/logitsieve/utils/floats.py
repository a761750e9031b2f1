"""Element types of arrays, with their names in every format, and conversions of floats.

numpy lacks bfloat16, which is stored as uint16, the upper half of a float32.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.results import Bool, Float32


class ElementType(NamedTuple):
    """A type of numbers; `kserve` is "" if KServe lacks it."""

    name: str
    numpy: np.dtype[Any]  # little-endian
    safetensors: str
    kserve: str = ""


ELEMENT_TYPES = (
    ElementType("float64", np.dtype("<f8"), "F64"),
    ElementType("float32", np.dtype("<f4"), "F32", "FP32"),
    ElementType("float16", np.dtype("<f2"), "F16", "FP16"),
    ElementType("bfloat16", np.dtype("<u2"), "BF16", "BF16"),
    ElementType("int64", np.dtype("<i8"), "I64"),
    ElementType("int32", np.dtype("<i4"), "I32", "INT32"),
    ElementType("int16", np.dtype("<i2"), "I16"),
    ElementType("int8", np.dtype("i1"), "I8"),
    ElementType("uint64", np.dtype("<u8"), "U64", "UINT64"),
    ElementType("uint32", np.dtype("<u4"), "U32"),
    ElementType("uint16", np.dtype("<u2"), "U16"),
    ElementType("uint8", np.dtype("u1"), "U8"),
    ElementType("bool", np.dtype("?"), "BOOL", "BOOL"),
)
BY_NAME = {kind.name: kind for kind in ELEMENT_TYPES}


STORED: dict[str, np.dtype[Any]] = {
    name: BY_NAME[name].numpy for name in ("float32", "float16", "bfloat16")
}
CODES = {name: BY_NAME[name].safetensors for name in STORED}
LARGEST = {"float32": 3.4028235e38, "float16": 65504.0, "bfloat16": 3.3895314e38}

EXPONENT = np.uint16(0x7F80)  # bits of a bfloat16 that are all 1 in NaN and infinity
CACHE_LINE = 64  # bytes, as in the widest vector register


def widened(half: np.ndarray) -> Float32:
    """Convert float16, bfloat16 bits or float32 exactly to a new float32, aligned to 64 bytes."""
    values = aligned(half.shape)
    if half.dtype == np.uint16:
        np.left_shift(half, np.uint32(16), out=values.view(np.uint32))
    else:
        np.copyto(values, half)
    return values


def aligned(shape: tuple[int, ...]) -> Float32:
    size = math.prod(shape)
    padded = np.empty(size + CACHE_LINE // 4, np.float32)
    skipped = -padded.ctypes.data % CACHE_LINE // 4
    return padded[skipped : skipped + size].reshape(shape)


def finite(array: np.ndarray) -> Bool:
    if array.dtype == np.uint16:
        return np.asarray(array & EXPONENT != EXPONENT)
    return np.asarray(np.isfinite(array))


def narrowed(values: np.ndarray, name: str) -> np.ndarray:
    """Round float32 or float64 to the type `name` of STORED, once, to nearest, ties to even."""
    with np.errstate(over="ignore"):
        if name != "bfloat16":
            return values.astype(STORED[name])
        bits = (_to_odd(values) if values.dtype == np.float64 else values).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16).astype(np.uint16)


def _to_odd(values: np.ndarray) -> Float32:
    """Round float64 to float32 so that the last bit of inexact results is 1 (round to odd)."""
    near = values.astype(np.float32)
    wide, bits = near.astype(np.float64), near.view(np.uint32)
    bits -= np.abs(wide) > np.abs(values)
    bits |= wide != values
    return near
