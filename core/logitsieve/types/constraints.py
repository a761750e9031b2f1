"""What a request may say about ids: banned, allowed, biased, penalised for being repeated.

The answer is exact over what remains. A logit x becomes, in this order, x / penalty if x > 0 else
x * penalty (for `repeated`), then x + bias (for `biased`); `banned` ids are never answered, nor
those outside `allowed` where that is given.

Shape letters: B batch rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from logitsieve.types.errors import InvalidRequest
from logitsieve.types.results import Float32, Int32

ALLOWED = "ids for every row: a list of integers, or a list of such lists, one for each row"
WIDEST_PENALTY = 1e6  # and its inverse; a penalty beyond it is a mistake


class IdSets(NamedTuple):
    """Ids of each row, as CSR: row r owns ids[offsets[r]:offsets[r+1]]."""

    offsets: Int32  # [B+1]
    ids: Int32


IdLists = Sequence[Sequence[int]] | Sequence[int] | IdSets


@dataclass(frozen=True, kw_only=True, eq=False)
class Constraints:
    """Ids of each row that are treated specially; a flat list of ids is meant for every row."""

    banned: IdLists | None = None
    allowed: IdLists | None = None  # None: all
    biased: IdLists | None = None  # distinct within a row
    bias: Sequence[Sequence[float]] | Sequence[float] | Float32 | None = None  # one per biased id
    repeated: IdLists | None = None
    repetition_penalty: float = 1.0

    def for_rows(self, rows: int) -> Constraints:
        """The same with every list as IdSets for `rows` rows and `bias` as one float32 array.

        InvalidRequest names the field that is not as said above; ids are not compared with V.
        """
        biased = _id_sets(self.biased, rows, "constraints.biased")
        return replace(
            self,
            banned=_id_sets(self.banned, rows, "constraints.banned"),
            allowed=_id_sets(self.allowed, rows, "constraints.allowed"),
            biased=biased,
            bias=_bias(self.bias, self.biased, biased),
            repeated=_id_sets(self.repeated, rows, "constraints.repeated"),
            repetition_penalty=_penalty(self.repetition_penalty),
        )


def _id_sets(lists: IdLists | None, rows: int, field: str) -> IdSets | None:
    if lists is None:
        return None
    if isinstance(lists, IdSets):
        return _checked_sets(lists, rows, field)
    each = _rows_of(lists, rows, field)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum([len(row) for row in each], out=offsets[1:])
    flat = [one for row in each for one in row]
    try:
        ids = np.array(flat, np.int64) if flat else np.empty(0, np.int64)
        if any(isinstance(one, bool | float | np.floating) for one in flat):
            raise TypeError
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(field, f"{lists!r:.80}", ALLOWED) from error
    _check_range(ids, field)
    return IdSets(offsets, ids.astype(np.int32))


def _rows_of(lists: Any, rows: int, field: str) -> list[Any]:
    """One sequence for each row, of a nested list, or of a flat one for all."""
    if not hasattr(lists, "__len__") or isinstance(lists, str | bytes):
        raise InvalidRequest(field, f"{lists!r:.80}", ALLOWED)
    nested = [hasattr(row, "__len__") for row in lists]
    if not any(nested):
        return [list(lists)] * rows
    if not all(nested):
        raise InvalidRequest(field, f"{lists!r:.80}", ALLOWED)
    if len(lists) != rows:
        raise InvalidRequest(field, f"{len(lists)} lists", f"{rows}, one for each row of hidden")
    return list(lists)


def _checked_sets(sets: IdSets, rows: int, field: str) -> IdSets:
    offsets, ids = (np.asarray(array) for array in sets)
    if offsets.dtype.kind not in "iu" or offsets.shape != (rows + 1,):
        got = f"{offsets.dtype} {list(offsets.shape)}"
        raise InvalidRequest(f"{field}.offsets", got, f"integers [{rows + 1}], rows of hidden + 1")
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise InvalidRequest(f"{field}.ids", f"{ids.dtype} {list(ids.shape)}", "integers [n]")
    wide = offsets.astype(np.int64)
    if wide[0] != 0 or wide[-1] != ids.size or (np.diff(wide) < 0).any():
        allowed = f"from 0 to {ids.size}, the number of ids, never falling"
        raise InvalidRequest(f"{field}.offsets", f"{wide[0]} .. {wide[-1]}", allowed)
    _check_range(ids, f"{field}.ids")
    return IdSets(
        np.ascontiguousarray(offsets, np.int32), np.ascontiguousarray(ids.astype(np.int32))
    )


def _check_range(ids: np.ndarray, field: str) -> None:
    if ids.size and (ids.min() < 0 or ids.max() > np.iinfo(np.int32).max):
        raise InvalidRequest(field, f"{ids.min()} .. {ids.max()}", "ids of the vocabulary")


def _bias(bias: Any, lists: IdLists | None, biased: IdSets | None) -> Float32 | None:
    """float32, one for each id of `biased`."""
    field = "constraints.bias"
    if biased is None:
        if bias is not None:
            raise InvalidRequest(field, "values", "none without constraints.biased")
        return None
    if bias is None:
        raise InvalidRequest(field, "nothing", "a number for each id of constraints.biased")
    rows = len(biased.offsets) - 1
    try:
        if isinstance(lists, IdSets) or isinstance(bias, np.ndarray):
            values = np.asarray(bias, np.float32).ravel()
        else:
            each = _rows_of(bias, rows, field)
            values = np.array([one for row in each for one in row], np.float32)
            if [len(row) for row in each] != np.diff(biased.offsets).tolist():
                raise ValueError("other lengths")
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(field, f"{bias!r:.80}", "a number for each biased id") from error
    if values.size != biased.ids.size:
        raise InvalidRequest(field, f"{values.size} values", f"{biased.ids.size}, one for each id")
    if not np.isfinite(values).all():
        raise InvalidRequest(field, "NaN or infinity", "finite numbers; ban an id by `banned`")
    return np.ascontiguousarray(values)


def _penalty(penalty: Any) -> float:
    number = isinstance(penalty, Real) and not isinstance(penalty, bool)
    if not number or not isfinite(penalty) or not 1 / WIDEST_PENALTY <= penalty <= WIDEST_PENALTY:
        allowed = f"a number from {1 / WIDEST_PENALTY:g} to {WIDEST_PENALTY:g}; 1 changes nothing"
        raise InvalidRequest("constraints.repetition_penalty", repr(penalty), allowed)
    return float(penalty)
