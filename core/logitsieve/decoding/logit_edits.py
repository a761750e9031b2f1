"""What constraints do to the logits of each row.

Sets of (row, id) are sorted vectors of keys, row x V + id, so that no row is looked at by itself.

Shape letters: B batch rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints, IdLists, IdSets
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64
from logitsieve.heads._base.head import Softmax, no_edits

LARGEST = float(np.finfo(np.float32).max)  # an edited logit beyond float32's range is its end


class Edits(NamedTuple):
    """Logits that are not W[ids] . h + b: row r owns those of ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # distinct and rising within a row
    values: Float64  # the logit instead; -inf for an id that must not be answered
    only: Bool  # [B] every id that is not named is forbidden

    def rows(self, rows: Int64) -> Edits:
        """Those of the given rows, in that order."""
        lengths = np.diff(self.offsets)[rows]
        offsets = offsets_of(lengths)
        taken = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Edits(offsets, self.ids[taken], self.values[taken], self.only[rows])

    def remaining(self, vocab_size: int) -> Int64:
        """[B] how many ids of each row may be answered."""
        named = self.answerable()
        return np.where(self.only, named, vocab_size - np.diff(self.offsets) + named)

    def answerable(self) -> Int64:
        """[B] how many ids that a row names may be answered."""
        before = np.concatenate([[0], np.cumsum(self.values > -np.inf)])
        return np.asarray(np.diff(before[self.offsets]))


def edits_of(softmax: Softmax, constraints: Constraints, hidden: Float32) -> Edits:
    """What `constraints` do to the logits of each row of hidden [B, D].

    InvalidRequest names what of them is not as it should be, or a row of hidden that is not finite.
    """
    rows, size = len(hidden), softmax.vocab_size
    sets = constraints.for_rows(rows)
    banned = _keys(sets.banned, size, "constraints.banned")
    biased = _keys(sets.biased, size, "constraints.biased")
    repeated = _keys(sets.repeated, size, "constraints.repeated")
    if sets.repetition_penalty == 1.0:
        repeated = repeated[:0]
    only, listed, unlisted = _allowed(sets.allowed, rows, size)
    listed = listed[~_among(listed, banned)]
    shut = _outside(only, size, np.concatenate([banned, unlisted]))
    changed = _outside(only, size, np.concatenate([biased, repeated]))
    keys = _rising(np.concatenate([listed, shut, changed]))
    offsets = np.searchsorted(keys, np.arange(rows + 1) * size)
    values = np.full(keys.size, -np.inf)
    open_ = ~_among(keys, shut)
    values[open_] = _edited(softmax, sets, hidden, keys[open_], biased, repeated)
    return Edits(offsets, (keys % size).astype(np.int32), values, only)


def unedited(rows: int) -> Edits:
    """Edits that change nothing."""
    return Edits(*no_edits(rows), np.zeros(rows, np.bool_))


def offsets_of(lengths: Int64) -> Int64:
    """CSR offsets of rows that long."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def keys_of(offsets: Int64 | Int32, ids: Int32, vocab_size: int) -> Int64:
    """The keys of CSR rows, in the order in which they stand."""
    rows = np.arange(len(offsets) - 1, dtype=np.int64)
    return np.repeat(rows * vocab_size, np.diff(offsets)) + ids


def check_ids(ids: Int32, vocab_size: int, field: str) -> None:
    """InvalidRequest naming `field` if one of the ids is not in the vocabulary."""
    if ids.size and (largest := int(ids.max())) >= vocab_size:
        raise InvalidRequest(field, largest, f"ids from 0 to {vocab_size - 1}")


def _keys(sets: IdLists | None, vocab_size: int, field: str) -> Int64:
    if sets is None:
        return np.empty(0, np.int64)
    assert isinstance(sets, IdSets), "made by for_rows"
    check_ids(sets.ids, vocab_size, field)
    return keys_of(sets.offsets, sets.ids, vocab_size)


def _rising(keys: Int64) -> Int64:
    """The keys, each once; sorting is faster than numpy's hashes, as rows come in order."""
    keys = np.sort(keys)
    return np.concatenate([keys[:1], keys[1:][keys[1:] != keys[:-1]]])


def _among(keys: Int64, others: Int64) -> Bool:
    """Which of the keys are others, too; most requests name ids for one reason only."""
    return np.isin(keys, others) if others.size else np.zeros(keys.size, np.bool_)


def _outside(only: Bool, vocab_size: int, keys: Int64) -> Int64:
    """The keys of rows that do not name all that may be answered."""
    return keys[~only[keys // vocab_size]] if only.any() else keys


def _allowed(sets: IdLists | None, rows: int, vocab_size: int) -> tuple[Bool, Int64, Int64]:
    """Rows that name all that may be answered, what they name, and what other rows forbid.

    A row allows at most half of the vocabulary by name, and more by what it leaves out.
    """
    none = np.empty(0, np.int64)
    if sets is None:
        return np.zeros(rows, np.bool_), none, none
    keys = _rising(_keys(sets, vocab_size, "constraints.allowed"))
    owners = keys // vocab_size
    only = 2 * np.bincount(owners, minlength=rows) <= vocab_size
    named = only[owners]
    return only, keys[named], _complement(keys[~named], np.flatnonzero(~only), vocab_size)


def _complement(keys: Int64, rows: Int64, vocab_size: int) -> Int64:
    """The keys of the given rows that are not among `keys`, both rising: what the gaps hold."""
    if not rows.size:
        return keys
    dense = np.searchsorted(rows, keys // vocab_size) * vocab_size + keys % vocab_size
    ends = np.concatenate([[-1], dense, [rows.size * vocab_size]])
    gaps = np.diff(ends) - 1
    missing = np.repeat(ends[:-1] + 1 - offsets_of(gaps)[:-1], gaps) + np.arange(gaps.sum())
    return rows[missing // vocab_size] * vocab_size + missing % vocab_size


def _edited(
    softmax: Softmax,
    sets: Constraints,
    hidden: Float32,
    keys: Int64,
    biased: Int64,
    repeated: Int64,
) -> Float64:
    """The logits of `keys`, penalised, then biased."""
    size = softmax.vocab_size
    offsets = np.searchsorted(keys, np.arange(len(hidden) + 1) * size)
    values = softmax.logits64(hidden, offsets, (keys % size).astype(np.int32))
    again, penalty = _among(keys, repeated), sets.repetition_penalty
    values[again] = np.where(values[again] > 0, values[again] / penalty, values[again] * penalty)
    if biased.size:
        places = np.searchsorted(keys, biased)
        places[places == keys.size] = 0
        found = keys[places] == biased if keys.size else np.zeros(biased.size, np.bool_)
        values[places[found]] += np.asarray(sets.bias, np.float64)[found]
    return np.clip(values, -LARGEST, LARGEST)
