"""Constraints: ids that are banned, allowed, biased, or penalized as repeated.

The logit x of a `repeated` id becomes x / penalty if x > 0, else x * penalty; then a `biased` id's
bias is added. Ids in `banned`, outside `allowed` or with a bit of 0 in `mask` are never answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NamedTuple, Self

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.mask import check_some_bits
from logitsieve.api.results import Float32, Int32, Int64, offsets_of, repeated_id, select_rows

ID_LISTS = "ids for every row: a list of integers, or a list of such lists, one for each row"
SETS = ("banned", "allowed", "biased", "repeated")
WIDEST_PENALTY = 1e6  # a penalty beyond it, or below its inverse, is a mistake


class IdSets(NamedTuple):
    """The ids of each row in CSR form: row r has ids[offsets[r]:offsets[r+1]]."""

    offsets: Int32  # [B+1]
    ids: Int32


IdLists = Sequence[Sequence[int]] | Sequence[int] | IdSets


@dataclass(frozen=True, kw_only=True, eq=False)
class Constraints:
    """Constraints for each row; a flat list of ids applies to every row.

    `allowed` None allows all ids. `biased` ids are distinct within a row, and `bias` has one number
    for each. `mask` is int32 [B, ceil(V / 32)], or one row for all: bit i % 32 of word i // 32
    allows the id i.
    """

    banned: IdLists | None = None
    allowed: IdLists | None = None
    biased: IdLists | None = None
    bias: Sequence[Sequence[float]] | Sequence[float] | Float32 | None = None
    repeated: IdLists | None = None
    mask: Any = None
    repetition_penalty: float = 1.0

    def for_rows(self, rows: int) -> Self:
        """Check all fields for `rows` rows, and convert lists to IdSets."""
        sets: dict[str, Any] = {
            name: _id_sets(getattr(self, name), rows, f"constraints.{name}") for name in SETS
        }
        biased = sets["biased"]
        if biased is not None and (repeated := repeated_id(*biased)):
            got = f"{repeated[1]} twice in row {repeated[0]}"
            raise InvalidRequest("constraints.biased", got, "distinct ids in each row")
        bias, penalty = _bias(self.bias, self.biased, biased), _penalty(self.repetition_penalty)
        mask = _mask(self.mask, rows)
        return replace(self, **sets, bias=bias, repetition_penalty=penalty, mask=mask)

    def take(self, rows: Int64) -> Self:
        """Select rows of constraints that `for_rows` made."""
        bias = self.bias
        if isinstance(self.biased, IdSets):
            bias = np.asarray(bias, np.float32)[select_rows(self.biased.offsets, rows)[1]]
        sets: dict[str, Any] = {name: _taken(getattr(self, name), rows) for name in SETS}
        mask = None if self.mask is None else self.mask[rows]
        return replace(self, **sets, bias=bias, mask=mask)


def _taken(sets: IdLists | None, rows: Int64) -> IdSets | None:
    if sets is None:
        return None
    assert isinstance(sets, IdSets), "for_rows makes IdSets"
    offsets, places = select_rows(sets.offsets, rows)
    return IdSets(offsets.astype(np.int32), sets.ids[places])


def _id_sets(lists: IdLists | None, rows: int, field: str) -> IdSets | None:
    if lists is None:
        return None
    if isinstance(lists, IdSets):
        return _checked_sets(lists, rows, field)
    each = _by_row(lists, rows, field, "iu", ID_LISTS)
    ids = np.concatenate([row.astype(np.int64) for row in each])
    _check_range(ids, field)
    offsets = offsets_of([len(row) for row in each])
    return IdSets(offsets.astype(np.int32), ids.astype(np.int32))


def _by_row(
    lists: Any, rows: int, field: str, kinds: str, allowed: str
) -> list[np.ndarray[Any, Any]]:
    if hasattr(lists, "__array__"):
        lists = np.asarray(lists)
    try:
        nested = [hasattr(row, "__len__") for row in lists]
        if isinstance(lists, str | bytes) or any(nested) != all(nested) * bool(nested):
            raise TypeError
        if not any(nested):
            return [_vector(lists, kinds)] * rows
        if len(lists) != rows:
            got = f"{len(lists)} lists"
            raise InvalidRequest(field, got, f"{rows}, one for each row of hidden_states")
        return [_vector(row, kinds) for row in lists]
    except (TypeError, OverflowError) as error:
        raise InvalidRequest(field, f"{lists!r:.80}", allowed) from error


def _vector(values: Any, kinds: str) -> np.ndarray[Any, Any]:
    if isinstance(values, list | tuple) and bool in map(type, values):
        raise TypeError
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise TypeError from error
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.dtype.kind not in kinds or array.ndim != 1:
        raise TypeError
    return array


def _checked_sets(sets: IdSets, rows: int, field: str) -> IdSets:
    offsets, ids = (np.asarray(array) for array in sets)
    if offsets.dtype.kind not in "iu" or offsets.shape != (rows + 1,):
        got = f"{offsets.dtype} {list(offsets.shape)}"
        raise InvalidRequest(
            f"{field}.offsets", got, f"integers [{rows + 1}], rows of hidden_states + 1"
        )
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
    field, allowed = "constraints.bias", "a finite number for each biased id; `banned` forbids"
    if biased is None:
        if bias is not None:
            raise InvalidRequest(field, "values", "none without constraints.biased")
        return None
    if bias is None:
        raise InvalidRequest(field, "nothing", allowed)
    rows = 1 if isinstance(lists, IdSets) else len(biased.offsets) - 1
    each = _by_row(bias, rows, field, "iuf", allowed)
    with np.errstate(over="ignore"):  # infinity is refused below
        values = np.concatenate(each).astype(np.float32)
    lengths = [biased.ids.size] if isinstance(lists, IdSets) else np.diff(biased.offsets).tolist()
    if [len(row) for row in each] != lengths:
        raise InvalidRequest(field, f"{values.size} values", f"{biased.ids.size}, one for each id")
    if not np.isfinite(values).all():
        raise InvalidRequest(field, "NaN or infinity", allowed)
    return values


def _mask(mask: Any, rows: int) -> Int32 | None:
    if mask is None:
        return None
    field, words = "constraints.mask", np.asarray(mask)
    if words.dtype != np.int32 or not words.ndim or words.shape[:-1] not in ((), (rows,)):
        got = f"{words.dtype} {list(words.shape)}"
        raise InvalidRequest(field, got, f"int32 [{rows}, ceil(V / 32)] or [ceil(V / 32)]")
    check_some_bits(words.reshape(-1, words.shape[-1]))
    return np.ascontiguousarray(np.broadcast_to(words, (rows, words.shape[-1])))


def _penalty(penalty: Any) -> float:
    number = isinstance(penalty, Real) and not isinstance(penalty, bool)
    if not number or not 1 / WIDEST_PENALTY <= penalty <= WIDEST_PENALTY:
        allowed = f"a number from {1 / WIDEST_PENALTY:g} to {WIDEST_PENALTY:g}; 1 changes nothing"
        raise InvalidRequest("constraints.repetition_penalty", repr(penalty), allowed)
    return float(penalty)
