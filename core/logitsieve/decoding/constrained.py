"""The best of what constraints leave, as exact as the head's own answer.

With A the edited ids of a row, the best k are among the best k of topk(k + |A|) without A, and of A
by its edited logits. How many a head is asked for depends on the row alone, so that its answer does
not depend on who shares its batch.

Shape letters: B batch rows, D hidden size, K answers, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from logitsieve.decoding.edits import Edits, offsets_of
from logitsieve.heads.base import Head, Softmax
from logitsieve.kernels.edits import merge_edited
from logitsieve.types.errors import InvalidRequest
from logitsieve.types.results import Bool, Float32, Float64, Int32, Int64


class Best(NamedTuple):
    """Like TopK, but with logits before they are rounded, and with rows of different lengths."""

    ids: Int32  # [B, K] -1 beyond what was wanted
    logits: Float64  # [B, K] -inf beyond
    exact: Bool  # [B]
    scanned: Int32  # [B] the ids that edits name are scanned, too
    fallback: Bool  # [B] rows that the head handed to its fallback

    def rows(self, chosen: Bool) -> Best:
        """Those of the chosen rows."""
        return Best._make(cast(np.ndarray, array)[chosen] for array in self)


def wanted_of(edits: Edits, k: int, vocab_size: int) -> Int64:
    """[B] k for every row; InvalidRequest names the row with the fewest, if fewer remain."""
    remaining = edits.remaining(vocab_size)
    row = int(np.argmin(remaining))
    if remaining[row] < k:
        allowed = f"at most {remaining[row]}, which the constraints leave in row {row}"
        raise InvalidRequest("k", k, allowed)
    return np.full(len(remaining), k, np.int64)


def best_edited(softmax: Softmax, head: Head, hidden: Float32, wanted: Int64, edits: Edits) -> Best:
    """The wanted[r] <= V best ids of each row of hidden [B, D] under `edits`, K the most wanted.

    The rows of hidden are admissible, and as many ids as wanted remain.
    """
    rows, width = len(hidden), int(wanted.max())
    offsets, ids, exact, scanned, fallback = _of_head(softmax, head, hidden, wanted, edits)
    logits = softmax.logits64(hidden, offsets, ids)
    best_ids = np.empty((rows, width), np.int32)
    best_logits = np.empty((rows, width), np.float64)
    merge_edited(
        offsets, ids, logits, edits.offsets, edits.ids, edits.values, wanted, best_ids, best_logits
    )
    return Best(best_ids, best_logits, exact, scanned, fallback)


def best_unedited(softmax: Softmax, head: Head, hidden: Float32, k: int) -> Best:
    """The k best ids of each row of hidden [B, D]."""
    top = head.topk(hidden, k)
    offsets = np.arange(len(hidden) + 1, dtype=np.int64) * k
    logits = softmax.logits64(hidden, offsets, top.ids.ravel()).reshape(top.ids.shape)
    return Best(top.ids, logits, top.exact, top.scanned, top.exact & (not head.proves))


def _of_head(
    softmax: Softmax, head: Head, hidden: Float32, wanted: Int64, edits: Edits
) -> tuple[Int64, Int32, Bool, Int32, Bool]:
    """What the head finds: offsets, ids, exact, scanned (with the edited ids), fallback.

    It is not asked about rows that name all that may be answered, nor where nothing is wanted.
    """
    rows, size = len(hidden), softmax.vocab_size
    asked = ~edits.only & (wanted > 0)
    needed = np.where(asked, np.minimum(wanted + np.diff(edits.offsets), size), 0)
    asked_for = np.minimum(_power_of_two(needed), size)
    offsets = offsets_of(needed)
    ids = np.empty(offsets[-1], np.int32)
    exact, fallback = np.ones(rows, np.bool_), np.zeros(rows, np.bool_)
    scanned = edits.answerable()
    for many in np.unique(asked_for[asked]):
        group = np.flatnonzero(asked & (asked_for == many))
        top = head.topk(hidden[group], int(many))
        exact[group], fallback[group] = top.exact, top.exact & (not head.proves)
        scanned[group] += top.scanned
        places = np.arange(many)
        kept = places < needed[group, None]
        ids[(offsets[group, None] + places)[kept]] = top.ids[kept]
    return offsets, ids, exact, np.minimum(scanned, size).astype(np.int32), fallback


def _power_of_two(needed: Int64) -> Int64:
    """The next one: few groups of rows, whatever the rows need."""
    exponents = np.ceil(np.log2(np.maximum(needed, 1))).astype(np.int64)
    return np.left_shift(1, exponents)
