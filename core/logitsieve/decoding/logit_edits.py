"""Constraints as edits of logits: which logits of a row they replace, and by what.

Sets of (row, id) are vectors of keys, row x V + id, so that no row is looked at by itself.

Shape letters: B batch rows, D hidden size, V vocabulary, T targets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints, IdLists, IdSets
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Candidates, Float32, Float64, Int32, Int64
from logitsieve.heads._base.head import Softmax, edits_of_rows, no_edits

LARGEST = float(np.finfo(np.float32).max)  # an edited logit beyond float32's range is its end


class Edits(NamedTuple):
    """Logits that are not W[ids] . h + b: row r owns those of ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # distinct and rising within a row
    values: Float64  # the logit instead; -inf for an id that must not be answered
    allow_list: bool  # every id that is not named is forbidden

    def rows(self, rows: Int64) -> Edits:
        """Edits of the given rows, in that order."""
        return Edits(*edits_of_rows(self[:3], rows), self.allow_list)

    def remaining(self, vocab_size: int) -> Int64:
        """[B] how many ids of each row may be answered."""
        named = self.answerable()
        return named if self.allow_list else vocab_size - np.diff(self.offsets) + named

    def answerable(self) -> Int64:
        """[B] how many ids that a row names may be answered."""
        return _answerable(self.offsets, self.values)

    def apply_to_all(self, logits: Float32) -> None:
        """Edit all logits [B, V], in place."""
        if self.allow_list:
            logits[:] = -np.inf
        rows = np.repeat(np.arange(len(logits)), np.diff(self.offsets))
        logits[rows, self.ids] = self.values

    def apply_to_targets(self, logits: Float64, targets: Int32, vocab_size: int) -> None:
        """Edit the logits [B, T] of `targets`, in place."""
        if self.allow_list:
            logits[:] = -np.inf
        keys = np.arange(len(targets))[:, None] * vocab_size + targets
        edited = keys_of(self.offsets, self.ids, vocab_size)
        named = among(keys, edited)
        logits[named] = self.values[np.searchsorted(edited, keys[named])]


class ListedLogits(NamedTuple):
    """Row r's ids are ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # distinct within a row
    logits: Float64  # -inf for an id that must not be answered

    def answerable(self) -> Int64:
        """[B] how many of a row's ids may be answered."""
        return _answerable(self.offsets, self.logits)


def edits_of(
    softmax: Softmax, constraints: Constraints, hidden: Float32, rows: Int64 | None = None
) -> Edits:
    """The edits by `constraints` of each row of hidden [B, D], or of the given `rows` of it.

    InvalidRequest names the constraint at fault, or a row of hidden that is not finite.
    """
    sets, size = constraints.for_rows(len(hidden)), softmax.vocab_size
    if rows is not None:
        sets, hidden = sets.take(rows), hidden[rows]
    banned = _rising(keys_of_sets(sets.banned, size, "constraints.banned"))
    biased = keys_of_sets(sets.biased, size, "constraints.biased")
    repeated = _rising(keys_of_sets(sets.repeated, size, "constraints.repeated"))
    if sets.repetition_penalty == 1.0:
        repeated = repeated[:0]
    allowed = _rising(keys_of_sets(sets.allowed, size, "constraints.allowed"))
    allow_list = sets.allowed is not None
    if allow_list:
        keys = allowed[~among(allowed, banned)]
    else:
        keys = _rising(np.concatenate([banned, biased, repeated]))
    offsets = np.searchsorted(keys, np.arange(len(hidden) + 1) * size)
    values, open_ = np.full(keys.size, -np.inf), ~among(keys, banned)
    values[open_] = _edited(softmax, sets, hidden, keys[open_], biased, repeated)
    return Edits(offsets, (keys % size).astype(np.int32), values, allow_list)


def open_edits(softmax: Softmax, constraints: Constraints, hidden: Float32) -> Edits:
    """`edits_of`; InvalidRequest if they leave nothing of a row, naming the row."""
    edits = edits_of(softmax, constraints, hidden)
    remaining = edits.remaining(softmax.vocab_size)
    if not remaining.all():
        got = f"nothing left in row {np.argmin(remaining)}"
        raise InvalidRequest("constraints", got, "at least one id for each row")
    return edits


def target_logits(
    softmax: Softmax, hidden: Float32, targets: Int32, edits: Edits | None
) -> Float64:
    """[B, T] exact logits of `targets`; -inf for those that edits forbid."""
    offsets = np.arange(len(targets) + 1, dtype=np.int64) * targets.shape[1]
    logits = softmax.logits64(hidden, offsets, targets.ravel()).reshape(targets.shape)
    if edits is not None:
        edits.apply_to_targets(logits, targets, softmax.vocab_size)
    return logits


def edit_candidates(candidates: Candidates, edits: Edits | None, vocab_size: int) -> ListedLogits:
    """The candidates' logits but for those that are edited, and all that are edited.

    An allow list leaves no others.
    """
    offsets, ids, logits = candidates.offsets, candidates.ids, candidates.logits
    if edits is None:
        return ListedLogits(offsets, ids, logits.astype(np.float64))
    keys, edited = (keys_of(each.offsets, each.ids, vocab_size) for each in (candidates, edits))
    kept = ~among(keys, edited) & (not edits.allow_list)
    both = np.concatenate([keys[kept], edited])
    values = np.concatenate([logits[kept].astype(np.float64), edits.values])
    order = np.argsort(both)
    both = both[order]
    offsets = np.searchsorted(both, np.arange(len(offsets), dtype=np.int64) * vocab_size)
    return ListedLogits(offsets, (both % vocab_size).astype(np.int32), values[order])


def unedited(rows: int) -> Edits:
    """Edits that change nothing."""
    return Edits(*no_edits(rows), False)


def keys_of(offsets: Int64 | Int32, ids: Int32, vocab_size: int) -> Int64:
    """The keys of CSR rows, in the order in which they stand."""
    rows = np.arange(len(offsets) - 1, dtype=np.int64)
    return np.repeat(rows * vocab_size, np.diff(offsets)) + ids


def keys_of_sets(sets: IdLists | None, vocab_size: int, field: str) -> Int64:
    """The keys of sets that `for_rows` made; InvalidRequest naming `field` as `check_ids` does."""
    if sets is None:
        return np.empty(0, np.int64)
    assert isinstance(sets, IdSets), "made by for_rows"
    check_ids(sets.ids, vocab_size, field)
    return keys_of(sets.offsets, sets.ids, vocab_size)


def among(keys: Int64, rising: Int64) -> Bool:
    """Mask of the keys that are in a sorted vector."""
    if not rising.size:
        return np.zeros(keys.shape, np.bool_)
    places = np.searchsorted(rising, keys)
    return np.asarray(rising[np.minimum(places, rising.size - 1)] == keys)


def check_ids(ids: Int32, vocab_size: int, field: str) -> None:
    """InvalidRequest naming `field` if one of the ids is not in the vocabulary."""
    if ids.size and (largest := int(ids.max())) >= vocab_size:
        raise InvalidRequest(field, largest, f"ids from 0 to {vocab_size - 1}")


def _answerable(offsets: Int64, logits: Float64) -> Int64:
    """[B] how many of each row's logits are not -inf."""
    before = np.concatenate([[0], np.cumsum(logits > -np.inf)])
    return np.asarray(np.diff(before[offsets]))


def _rising(keys: Int64) -> Int64:
    """The keys, each once; sorting is faster than numpy's hashes, as rows come in order."""
    keys = np.sort(keys)
    return np.concatenate([keys[:1], keys[1:][keys[1:] != keys[:-1]]])


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
    penalized, penalty = among(keys, repeated), sets.repetition_penalty
    old = values[penalized]
    values[penalized] = np.where(old > 0, old / penalty, old * penalty)
    if biased.size:
        places = np.searchsorted(keys, biased)
        kept = among(biased, keys)
        values[places[kept]] += np.asarray(sets.bias, np.float64)[kept]
    # A logit of -inf is that of a row of W that cannot be asked: it is not answered.
    return np.where(values > -np.inf, np.clip(values, -LARGEST, LARGEST), -np.inf)
