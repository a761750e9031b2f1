"""Edits replace some logits of each row, and a mask may forbid other ids.

A pair (row, id) is one integer key, row * V + id, so sets of pairs need no loop over rows.
"""

from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np

from logitsieve.api.mask import bits_of, count_bits, unpacked
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64, select_rows


class Edits(NamedTuple):
    """The edited ids of row r are ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # distinct and ascending within a row
    values: Float64  # -inf forbids the id
    allow_list: bool = False  # all other ids are forbidden
    mask: Int32 | None = None  # [B, ceil(V / 32)] of `Head.masked`; ids that it forbids have -inf

    @property
    def arrays(self) -> tuple[Int64, Int32, Float64]:
        return self[:3]

    def rows(self, rows: Int64) -> Self:
        offsets, places = select_rows(self.offsets, rows)
        mask = None if self.mask is None else self.mask[rows]
        return type(self)(offsets, self.ids[places], self.values[places], self.allow_list, mask)

    @property
    def plain(self) -> bool:
        """True if there is only a mask, which heads apply themselves."""
        return self.mask is not None and not self.ids.size

    def remaining(self, vocab_size: int) -> Int64:
        if self.mask is not None and not self.ids.size:
            return count_bits(self.mask)
        named = self.answerable()
        return named if self.allow_list else self.unnamed(vocab_size) + named

    def unnamed(self, vocab_size: int) -> Int64:
        """Count the allowed ids of each row that are not edited, [B]."""
        if self.mask is None:
            return np.asarray(vocab_size - np.diff(self.offsets))
        rows = np.repeat(np.arange(len(self.mask)), np.diff(self.offsets))
        inside = np.bincount(rows[bits_of(self.mask, rows, self.ids)], minlength=len(self.mask))
        return count_bits(self.mask) - inside

    def answerable(self) -> Int64:
        """Count the allowed ids among the edited ones of each row, [B]."""
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
    """Count the logits above -inf of each CSR row, [B]."""
    before = np.concatenate([[0], np.cumsum(logits > -np.inf)])
    return np.asarray(np.diff(before[offsets]))


def keys_of(offsets: Int64 | Int32, ids: Int32, vocab_size: int) -> Int64:
    rows = np.arange(len(offsets) - 1, dtype=np.int64)
    return np.repeat(rows * vocab_size, np.diff(offsets)) + ids


def among(keys: Int64, rising: Int64) -> Bool:
    """Tell which keys are in the sorted vector `rising`."""
    if not rising.size:
        return np.zeros(keys.shape, np.bool_)
    places = np.searchsorted(rising, keys)
    return np.asarray(rising[np.minimum(places, rising.size - 1)] == keys)
