"""Logits that are known of each row: a head's candidates, and what edits make of any.

Shape letters: B batch rows, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Candidates, Float64, Int32, Int64
from logitsieve.decoding.logit_edits import Edits, keys_of


class Known(NamedTuple):
    """Row r's ids are ids[offsets[r]:offsets[r+1]]."""

    offsets: Int64  # [B+1]
    ids: Int32  # distinct within a row
    logits: Float64  # -inf for an id that must not be answered

    def open(self) -> Int64:
        """[B] how many of a row's ids may be answered."""
        before = np.concatenate([[0], np.cumsum(self.logits > -np.inf)])
        return np.asarray(np.diff(before[self.offsets]))


def known(found: Candidates, edits: Edits | None, vocab_size: int) -> Known:
    """The candidates' logits but for those that are edited, and all that are edited.

    A row that names all that may be answered has no others.
    """
    if edits is None:
        return Known(found.offsets, found.ids, found.logits.astype(np.float64))
    keys, edited = (keys_of(each.offsets, each.ids, vocab_size) for each in (found, edits))
    kept = ~edits.only[keys // vocab_size] & ~np.isin(keys, edited)
    both = np.concatenate([keys[kept], edited])
    logits = np.concatenate([found.logits[kept].astype(np.float64), edits.values])
    order = np.argsort(both)
    both = both[order]
    offsets = np.searchsorted(both, np.arange(len(found.offsets), dtype=np.int64) * vocab_size)
    return Known(offsets, (both % vocab_size).astype(np.int32), logits[order])
