"""Arrays in messages: little-endian, row-major bytes with a dtype code, rows and cols."""

from enum import IntEnum
from typing import Any, TypeVar

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.floats import BY_NAME

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
    """Encode [rows, cols], or [rows] with cols = 1, as (dtype code, rows, cols, bytes)."""
    if array.dtype not in CODES:
        array = array.astype(array.dtype.newbyteorder("<"))
    rows, cols = array.shape if array.ndim == 2 else (array.size, 1)
    return CODES[array.dtype], rows, cols, array.tobytes()


def put(tensor: T, array: np.ndarray) -> T:
    """Write an array into a Tensor message in place, which avoids a copy; return the message."""
    message: Any = tensor
    message.dtype, message.rows, message.cols, message.data = encode(array)
    return tensor


def decode(code: int, rows: int, cols: int, data: bytes, field: str) -> np.ndarray:
    """Return `data` as a read-only array [rows, cols], bfloat16 as uint16; or InvalidRequest."""
    dtype = TYPES.get(code)
    if dtype is None:
        allowed = ", ".join(f"{each.value} ({each.name})" for each in DType)
        raise InvalidRequest(f"{field}.dtype", code, allowed)
    if len(data) != (size := rows * cols * dtype.itemsize):
        allowed = f"rows x cols x {dtype.itemsize} = {size} bytes"
        raise InvalidRequest(f"{field}.data", f"{len(data)} bytes", allowed)
    return np.ndarray((rows, cols), dtype, data)
