"""Constraints as edits: the logits of a row that they replace, and the new values.

Sets of (row, id) are vectors of keys, row x V + id, to avoid loops over rows.

Shape letters: B batch rows, D hidden size, V vocabulary, T targets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.constraints import Constraints, IdLists, IdSets
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Candidates, Float32, Float64, Int32, Int64
from logitsieve.heads._base.head import Softmax, edits_of_rows, no_edits

LARGEST = float(np.finfo(np.float32).max)  # edited logits are clipped to float32's range


class Edits(NamedTuple):
    """Replaced logits: row r's are those of ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # distinct and ascending within a row
    values: Float64  # the new logit; -inf forbids the id
    allow_list: bool  # all other ids are forbidden

    def rows(self, rows: Int64) -> Edits:
        """Select rows, in that order."""
        return Edits(*edits_of_rows(self[:3], rows), self.allow_list)

    def remaining(self, vocab_size: int) -> Int64:
        """Count the allowed ids of each row, [B]."""
        named = self.answerable()
        return named if self.allow_list else vocab_size - np.diff(self.offsets) + named

    def answerable(self) -> Int64:
        """Count the allowed ids that each row names, [B]."""
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
    logits: Float64  # -inf for forbidden ids

    def answerable(self) -> Int64:
        """Count the allowed ids of each row, [B]."""
        return _answerable(self.offsets, self.logits)


def edits_of(
    softmax: Softmax, constraints: Constraints, hidden: Float32, rows: Int64 | None = None
) -> Edits:
    """Return the edits by `constraints` of each row of hidden [B, D], or of given `rows`.

    InvalidRequest names a wrong constraint, or a row of hidden that is not finite.
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
    """Like `edits_of`; InvalidRequest names a row that is left without ids."""
    edits = edits_of(softmax, constraints, hidden)
    remaining = edits.remaining(softmax.vocab_size)
    if not remaining.all():
        got = f"nothing left in row {np.argmin(remaining)}"
        raise InvalidRequest("constraints", got, "at least one id for each row")
    return edits


def target_logits(
    softmax: Softmax, hidden: Float32, targets: Int32, edits: Edits | None
) -> Float64:
    """Return [B, T] exact logits of `targets`; -inf for forbidden ones."""
    offsets = np.arange(len(targets) + 1, dtype=np.int64) * targets.shape[1]
    logits = softmax.logits64(hidden, offsets, targets.ravel()).reshape(targets.shape)
    if edits is not None:
        edits.apply_to_targets(logits, targets, softmax.vocab_size)
    return logits


def edit_candidates(candidates: Candidates, edits: Edits | None, vocab_size: int) -> ListedLogits:
    """Merge the candidates' unedited logits with all edited ones."""
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
    """Return edits that change no logit."""
    return Edits(*no_edits(rows), False)


def keys_of(offsets: Int64 | Int32, ids: Int32, vocab_size: int) -> Int64:
    """Return the keys of CSR rows, in order."""
    rows = np.arange(len(offsets) - 1, dtype=np.int64)
    return np.repeat(rows * vocab_size, np.diff(offsets)) + ids


def keys_of_sets(sets: IdLists | None, vocab_size: int, field: str) -> Int64:
    """Return the keys of sets from `for_rows`; InvalidRequest as in `check_ids`."""
    if sets is None:
        return np.empty(0, np.int64)
    assert isinstance(sets, IdSets), "made by for_rows"
    check_ids(sets.ids, vocab_size, field)
    return keys_of(sets.offsets, sets.ids, vocab_size)


def among(keys: Int64, rising: Int64) -> Bool:
    """Return the mask of keys that are in a sorted vector."""
    if not rising.size:
        return np.zeros(keys.shape, np.bool_)
    places = np.searchsorted(rising, keys)
    return np.asarray(rising[np.minimum(places, rising.size - 1)] == keys)


def check_ids(ids: Int32, vocab_size: int, field: str) -> None:
    """InvalidRequest names `field` if an id is outside the vocabulary."""
    if ids.size and (largest := int(ids.max())) >= vocab_size:
        raise InvalidRequest(field, largest, f"ids from 0 to {vocab_size - 1}")


def _answerable(offsets: Int64, logits: Float64) -> Int64:
    before = np.concatenate([[0], np.cumsum(logits > -np.inf)])
    return np.asarray(np.diff(before[offsets]))


def _rising(keys: Int64) -> Int64:
    """Sort the distinct keys, faster than numpy's hashes, as rows come in order."""
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
    # Rows of W that cannot be asked have -inf: they are not answered.
    return np.where(values > -np.inf, np.clip(values, -LARGEST, LARGEST), -np.inf)
