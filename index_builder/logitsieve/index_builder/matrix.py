"""The matrix and the bias of a build: loaded, checked, in the types that the index keeps.

Shape letters: D hidden size, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Float32
from logitsieve.index_builder.arrays import load_array
from logitsieve.index_builder.config import GIVEN
from logitsieve.utils.floats import LARGEST, STORED, finite, narrowed, widened
from logitsieve.utils.hidden import as_rows

PIECE = 1 << 20  # numbers rounded at once


def matrix(weight: ArrayLike, dtype: str) -> np.ndarray:
    """[V, D] of `dtype`, a name of STORED, or of the half type it has, else float32.

    A file, named as arrays.py does, or anything that contexts may be; bfloat16 becomes its bits,
    uint16. InvalidRequest for another form, for NaN, and for what is infinite in that type.
    """
    array = load_array(weight, "weight") if isinstance(weight, (str, Path)) else weight
    if np.ndim(array) != 2:
        raise InvalidRequest("weight", f"shape {list(np.shape(array))}", "[V, D]")
    rows = _finite_rows(array, "weight")
    if dtype == GIVEN:
        dtype = next((name for name, kind in STORED.items() if kind == rows.dtype), "float32")
    return np.ascontiguousarray(_stored_as(dtype, rows, "weight"))


def vector(bias: ArrayLike | None, vocab_size: int) -> Float32:
    """float32 [V]; None is zeros. InvalidRequest names what is wrong."""
    if bias is None:
        return np.zeros(vocab_size, np.float32)
    array = load_array(bias, "bias") if isinstance(bias, (str, Path)) else bias
    if np.shape(array) != (vocab_size,):
        raise InvalidRequest("bias", f"shape {list(np.shape(array))}", f"[V] = [{vocab_size}]")
    rows = _finite_rows(array, "bias")
    return np.ascontiguousarray(_stored_as("float32", rows, "bias")[0])


def _finite_rows(array: ArrayLike, field: str) -> np.ndarray:
    try:
        rows = as_rows(array)
    except InvalidRequest as error:
        raise InvalidRequest(field, error.got, error.allowed) from error
    if not finite(rows).all():
        raise InvalidRequest(field, "NaN or infinity", "finite values")
    return rows


def _stored_as(dtype: str, rows: np.ndarray, field: str) -> np.ndarray:
    """The values of rows [V, D], each rounded once; `rows` itself where that is nothing to do."""
    if rows.dtype == STORED[dtype]:
        return rows
    stored = np.empty(rows.shape, STORED[dtype])
    step = max(1, PIECE // rows.shape[1])
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        half = piece.dtype in (np.float16, np.uint16)
        stored[start : start + step] = narrowed(widened(piece) if half else piece, dtype)
        _refuse_infinite(stored[start : start + step], piece, start, dtype, field)
    return stored


def _refuse_infinite(
    stored: np.ndarray, given: np.ndarray, start: int, dtype: str, field: str
) -> None:
    """InvalidRequest names the first number of `given` that the type has no room for."""
    if (good := finite(stored)).all():
        return
    row, column = np.unravel_index(int(good.argmin()), good.shape)
    number = float((widened(given) if given.dtype == np.uint16 else given)[row, column])
    raise InvalidRequest(
        f"{field}[{start + int(row)}, {int(column)}]",
        f"{number:g}, infinite as {dtype}",
        f"numbers that {dtype} holds, up to {LARGEST[dtype]:g}",
    )
