"""The wire form of arrays: little-endian, row-major bytes with a dtype code, rows and cols.

The codes are those of `DType` in decoder.proto; a test compares them. This module knows numpy
only, so that client and server share it without generated code.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.dtypes import BY_NAME

T = TypeVar("T")


class DType(IntEnum):
    """Codes of decoder.proto's DType."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT32 = 4
    UINT64 = 5
    BOOL = 6


NUMPY_TYPES = {code: BY_NAME[code.name.lower()].numpy for code in DType}
TYPES: dict[int, np.dtype[Any]] = {int(code): dtype for code, dtype in NUMPY_TYPES.items()}
CODES = {dtype: int(code) for code, dtype in NUMPY_TYPES.items()}


def encode(array: np.ndarray) -> tuple[int, int, int, bytes]:
    """An array [rows, cols], or [rows] (cols = 1) -> (dtype code, rows, cols, bytes)."""
    if array.dtype not in CODES:
        array = array.astype(array.dtype.newbyteorder("<"))
    rows, cols = array.shape if array.ndim == 2 else (array.size, 1)
    return CODES[array.dtype], rows, cols, array.tobytes()


def put(tensor: T, array: np.ndarray) -> T:
    """Write an array into a message Tensor, and return it.

    In place, into the field of its parent: a Tensor made apart would be copied, bytes and all.
    """
    message: Any = tensor
    message.dtype, message.rows, message.cols, message.data = encode(array)
    return tensor


def decode(code: int, rows: int, cols: int, data: bytes, field: str) -> np.ndarray:
    """The read-only array [rows, cols] over `data`; bfloat16 as its uint16 view.

    InvalidRequest names `field` where the code is unknown or the size does not fit.
    """
    dtype = TYPES.get(code)
    if dtype is None:
        allowed = ", ".join(f"{each.value} ({each.name})" for each in DType)
        raise InvalidRequest(f"{field}.dtype", code, allowed)
    if len(data) != (size := rows * cols * dtype.itemsize):
        allowed = f"rows x cols x {dtype.itemsize} = {size} bytes"
        raise InvalidRequest(f"{field}.data", f"{len(data)} bytes", allowed)
    return np.ndarray((rows, cols), dtype, data)
