"""Checks of arguments. Each returns the converted value, or raises InvalidRequest."""

from math import inf
from numbers import Real
from operator import index
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest, between
from logitsieve.api.results import ArrayLike, Int32

INT32_MAX = int(np.iinfo(np.int32).max)
STRONGEST = 1e3  # largest guidance scale, of either sign


def whole(field: str, value: Any, low: int, high: float = inf) -> int:
    if type(value) is int and low <= value <= high:
        return value
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        if low <= (whole_number := index(value)) <= high:
            return whole_number
        got = f"{whole_number!s:.80}"
    except TypeError:
        got = f"{value!a:.80}"
    raise InvalidRequest(field, got, between("a whole number", low, high))


def number(field: str, value: Any, low: float, high: float) -> float:
    if type(value) is float and low <= value <= high:
        return value
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not low <= value <= high:
        raise InvalidRequest(field, f"{value!a:.80}", between("a number", low, high))
    return float(value)


def flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InvalidRequest(field, f"{value!a:.80}", "True or False")
    return bool(value)


def id_rows(field: str, ids: ArrayLike, rows: int, largest: int) -> Int32:
    """Return int32 ids [rows, M], each from 0 to `largest`."""
    allowed = f"integers [{rows}, M], M >= 1"
    array = as_array(field, ids, allowed)
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.size == 0 or len(array) != rows:
        raise InvalidRequest(field, f"{array.dtype} {list(array.shape)}", allowed)
    if array.min() < 0 or array.max() > largest:
        raise InvalidRequest(field, f"{array.min()} .. {array.max()}", f"ids, 0 .. {largest}")
    return np.ascontiguousarray(array, np.int32)


def vector(field: str, values: ArrayLike | None, rows: int, dtype: Any, kinds: str) -> Any:
    """Return numbers of numpy's `kinds` as an array [rows] of `dtype`; zeros for None."""
    if values is None:
        return np.zeros(rows, dtype)
    if type(values) is np.ndarray and values.dtype == dtype and values.shape == (rows,):
        return np.ascontiguousarray(values)
    allowed = f"{np.dtype(dtype)} [{rows}], one for each row of hidden_states"
    array = as_array(field, values, allowed)
    if array.dtype.kind not in kinds or array.size != rows:
        raise InvalidRequest(field, f"{array.dtype} {list(array.shape)}", allowed)
    with np.errstate(over="ignore"):
        ready = np.ascontiguousarray(array.ravel(), dtype)
    if array.dtype.kind in "iu" and (ready != array.ravel()).any() and dtype is np.int32:
        raise InvalidRequest(field, f"{array.min()} .. {array.max()}", allowed)
    return ready


def as_array(field: str, values: ArrayLike, allowed: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(on_host(values))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(field, "a ragged list", allowed) from error


def on_host(values: Any) -> Any:
    """Convert a tensor to an array, floats to float32; return other values unchanged."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    return (values.float() if values.is_floating_point() else values).numpy()
