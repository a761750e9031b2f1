"""The best of what constraints leave, as exact as the head's own answer.

With A the edited ids of a row, the best k are among the best k outside A, and A by its edited
logits. The former are in topk(k + |A|), but mostly in much less: a head is asked for a few more
than k, and for twice as many while fewer than k are outside A. What it is asked for depends on the
row alone, so that its answer does not depend on who shares its batch.

Shape letters: B batch rows, D hidden size, K answers, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64
from logitsieve.decoding.logit_edits import Edits, keys_of, offsets_of
from logitsieve.heads._base.head import Head, Softmax
from logitsieve.kernels.topk.merge import merge_edited

HEADROOM = 8  # ids that a head is asked for beyond k at first, where as many are edited


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
    """The wanted best ids that are not edited: offsets, ids, exact, scanned, fallback.

    The head is not asked about rows that name all that may be answered, nor where none is wanted.
    """
    rows, size = len(hidden), softmax.vocab_size
    named = np.diff(edits.offsets)
    lengths = np.where(edits.only, 0, np.minimum(wanted, size - named))
    offsets, keys = offsets_of(lengths), keys_of(edits.offsets, edits.ids, size)
    ids, exact = np.empty(offsets[-1], np.int32), np.ones(rows, np.bool_)
    scanned, fallback = edits.answerable(), np.zeros(rows, np.bool_)
    asked_for = np.minimum(_power_of_two(lengths + np.minimum(named, HEADROOM)), size)
    asked_for[lengths == 0] = 0
    while (pending := np.flatnonzero(asked_for)).size:
        many = int(asked_for[pending].min())
        group = pending[asked_for[pending] == many]
        top = head.topk(hidden[group], many)
        unedited = ~_among(group[:, None] * size + top.ids, keys)
        places = np.cumsum(unedited, axis=1)
        enough = places[:, -1] >= lengths[group]
        chosen = unedited & (places <= lengths[group, None]) & enough[:, None]
        starts = np.broadcast_to(offsets[group, None], chosen.shape)[chosen]
        ids[starts + places[chosen] - 1] = top.ids[chosen]
        done = group[enough]
        exact[done], scanned[done] = top.exact[enough], scanned[done] + top.scanned[enough]
        fallback[done] = top.exact[enough] & (not head.proves)
        asked_for[group] = min(2 * many, size)
        asked_for[done] = 0
    return offsets, ids, exact, np.minimum(scanned, size).astype(np.int32), fallback


def _among(keys: Int64, rising: Int64) -> Bool:
    """Which of the keys are in a sorted vector."""
    if not rising.size:
        return np.zeros(keys.shape, np.bool_)
    places = np.searchsorted(rising, keys)
    return np.asarray(rising[np.minimum(places, rising.size - 1)] == keys)


def _power_of_two(needed: Int64) -> Int64:
    """The next one: few groups of rows, whatever the rows need."""
    exponents = np.ceil(np.log2(np.maximum(needed, 1))).astype(np.int64)
    return np.left_shift(1, exponents)
