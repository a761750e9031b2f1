"""Element types of arrays: numpy's type, and the name in every format."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class ElementType(NamedTuple):
    """A type of numbers; `kserve` is empty if KServe does not carry it."""

    name: str
    numpy: np.dtype[Any]  # little-endian
    safetensors: str
    kserve: str = ""


ELEMENT_TYPES = (
    ElementType("float64", np.dtype("<f8"), "F64"),
    ElementType("float32", np.dtype("<f4"), "F32", "FP32"),
    ElementType("float16", np.dtype("<f2"), "F16", "FP16"),
    ElementType("bfloat16", np.dtype("<u2"), "BF16", "BF16"),  # as bits: numpy has no such type
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
