"""Edits: the ids of rows with replaced logits, the new values, and a mask of the ids allowed.

Sets of (row, id) are vectors of keys, row x V + id, to avoid loops over rows.
"""

from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np

from logitsieve.api.mask import bits_of, count_bits, unpacked
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64, select_rows


class Edits(NamedTuple):
    """Replaced logits of row r: ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # distinct and ascending within a row
    values: Float64  # -inf forbids the id
    allow_list: bool = False  # forbids all other ids, which no head reads
    mask: Int32 | None = None  # [B, ceil(V / 32)]: `Head.masked`; it forbids ids of edits, too

    @property
    def arrays(self) -> tuple[Int64, Int32, Float64]:
        """Return what kernels take."""
        return self[:3]

    def rows(self, rows: Int64) -> Self:
        """Select rows, in that order."""
        offsets, places = select_rows(self.offsets, rows)
        mask = None if self.mask is None else self.mask[rows]
        return type(self)(offsets, self.ids[places], self.values[places], self.allow_list, mask)

    @property
    def plain(self) -> bool:
        """True if no logit is replaced, so that a head under the mask answers alone."""
        return self.mask is not None and not self.ids.size

    def remaining(self, vocab_size: int) -> Int64:
        """Count the allowed ids of each row, [B]."""
        if self.mask is not None and not self.ids.size:
            return count_bits(self.mask)
        named = self.answerable()
        return named if self.allow_list else self.unnamed(vocab_size) + named

    def unnamed(self, vocab_size: int) -> Int64:
        """Count the allowed ids of each row that edits do not name, [B]."""
        if self.mask is None:
            return np.asarray(vocab_size - np.diff(self.offsets))
        rows = np.repeat(np.arange(len(self.mask)), np.diff(self.offsets))
        inside = np.bincount(rows[bits_of(self.mask, rows, self.ids)], minlength=len(self.mask))
        return count_bits(self.mask) - inside

    def answerable(self) -> Int64:
        """Count the allowed ids that each row names, [B]."""
        return answerable(self.offsets, self.values)

    def apply_to_all(self, logits: Float32) -> None:
        """Edit all logits [B, V], in place."""
        if self.allow_list:
            logits[:] = -np.inf
        if self.mask is not None:
            logits[~unpacked(self.mask, logits.shape[1])] = -np.inf
        rows = np.repeat(np.arange(len(logits)), np.diff(self.offsets))
        logits[rows, self.ids] = self.values

    def apply_to_ids(self, logits: Float64, token_ids: Int32, vocab_size: int) -> None:
        """Edit the logits [B, T] of `token_ids`, in place."""
        if self.allow_list:
            logits[:] = -np.inf
        rows = np.arange(len(token_ids))[:, None]
        if self.mask is not None:
            logits[~bits_of(self.mask, rows, token_ids)] = -np.inf
        keys = rows * vocab_size + token_ids
        edited = keys_of(self.offsets, self.ids, vocab_size)
        named = among(keys, edited)
        logits[named] = self.values[np.searchsorted(edited, keys[named])]


@lru_cache(maxsize=64)
def no_edits(rows: int) -> Edits:
    edits = Edits(np.zeros(rows + 1, np.int64), np.empty(0, np.int32), np.empty(0))
    for array in edits.arrays:
        array.flags.writeable = False
    return edits


def answerable(offsets: Int64, logits: Float64) -> Int64:
    """Count the logits of each CSR row above -inf, [B]."""
    before = np.concatenate([[0], np.cumsum(logits > -np.inf)])
    return np.asarray(np.diff(before[offsets]))


def keys_of(offsets: Int64 | Int32, ids: Int32, vocab_size: int) -> Int64:
    """Return the keys of CSR rows, in order."""
    rows = np.arange(len(offsets) - 1, dtype=np.int64)
    return np.repeat(rows * vocab_size, np.diff(offsets)) + ids


def among(keys: Int64, rising: Int64) -> Bool:
    """Return the mask of keys that are in a sorted vector."""
    if not rising.size:
        return np.zeros(keys.shape, np.bool_)
    places = np.searchsorted(rising, keys)
    return np.asarray(rising[np.minimum(places, rising.size - 1)] == keys)
