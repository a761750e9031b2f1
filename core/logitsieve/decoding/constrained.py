"""The best of what constraints leave, as exact as the head's own answer.

With A the edited ids of a row, the best k are among the best k outside A, and A by its edited
logits. A head answers for a few more than k, and for twice as many while fewer than k are outside
A. That number depends on the row alone, so that an answer does not depend on the other rows of its
batch.

Shape letters: B batch rows, D hidden size, K answers, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Float64, Int32, Int64, Provenance
from logitsieve.decoding.logit_edits import Edits, among, keys_of
from logitsieve.heads._base.head import Softmax, offsets_of
from logitsieve.heads._base.kernel_head import Head
from logitsieve.kernels.topk.merge import merge_edited

HEADROOM = 8  # ids beyond k that a head answers at first, where as many are edited


class BestLogits(NamedTuple):
    """Like TopK, but with logits before they are rounded, and with rows of different lengths."""

    ids: Int32  # [B, K] -1 beyond what was wanted
    logits: Float64  # [B, K] -inf beyond
    provenance: Provenance  # the ids that edits name are scanned, too


def wanted_of(edits: Edits, k: int, vocab_size: int) -> Int64:
    """Return [B] k for every row; InvalidRequest names the row with the fewest, if fewer remain."""
    remaining = edits.remaining(vocab_size)
    row = int(np.argmin(remaining))
    if remaining[row] < k:
        allowed = f"at most {remaining[row]}, which the constraints leave in row {row}"
        raise InvalidRequest("k", k, allowed)
    return np.full(len(remaining), k, np.int64)


def best_edited(
    softmax: Softmax, head: Head, hidden: Float32, wanted: Int64, edits: Edits
) -> BestLogits:
    """Return the wanted[r] <= V best ids of each row of hidden [B, D] under `edits`.

    The rows of hidden are admissible, and leave at least that many ids.
    """
    rows, width = len(hidden), int(wanted.max())
    offsets, ids, provenance = _of_head(softmax, head, hidden, wanted, edits)
    logits = softmax.logits64(hidden, offsets, ids)
    best_ids = np.empty((rows, width), np.int32)
    best_logits = np.empty((rows, width), np.float64)
    merge_edited(
        offsets, ids, logits, edits.offsets, edits.ids, edits.values, wanted, best_ids, best_logits
    )
    return BestLogits(best_ids, best_logits, provenance)


def best_unedited(softmax: Softmax, head: Head, hidden: Float32, k: int) -> BestLogits:
    """Return the k best ids of each row of hidden [B, D]."""
    top = head.topk(hidden, k)
    offsets = np.arange(len(hidden) + 1, dtype=np.int64) * k
    logits = softmax.logits64(hidden, offsets, top.ids.ravel()).reshape(top.ids.shape)
    return BestLogits(top.ids, logits, Provenance(*top[2:], head.chance))


def _of_head(
    softmax: Softmax, head: Head, hidden: Float32, wanted: Int64, edits: Edits
) -> tuple[Int64, Int32, Provenance]:
    """Return the best unedited ids that are needed, as CSR offsets and ids.

    The head is not called under an allow list, nor for rows that need none.
    """
    rows, size = len(hidden), softmax.vocab_size
    named = np.diff(edits.offsets)
    lengths = np.minimum(wanted, size - named) * (not edits.allow_list)
    offsets, keys = offsets_of(lengths), keys_of(edits.offsets, edits.ids, size)
    ids, exact = np.empty(offsets[-1], np.int32), np.ones(rows, np.bool_)
    scanned, fallback = edits.answerable(), np.zeros(rows, np.bool_)
    # Powers of two make few groups of rows, whatever the rows need.
    first, last = (
        np.ceil(np.log2(np.maximum(lengths + beyond, 1))).astype(np.int64)
        for beyond in (np.minimum(named, HEADROOM), named)
    )
    ks = np.minimum(np.left_shift(1, first), size)
    ks[lengths == 0] = 0
    while (pending := np.flatnonzero(ks)).size:
        many = int(ks[pending].min())
        group = pending[ks[pending] == many]
        top = head.topk(hidden[group], many)
        unedited = ~among(group[:, None] * size + top.ids, keys)
        places = np.cumsum(unedited, axis=1)
        enough = places[:, -1] >= lengths[group]
        chosen = unedited & (places <= lengths[group, None]) & enough[:, None]
        starts = np.broadcast_to(offsets[group, None], chosen.shape)[chosen]
        ids[starts + places[chosen] - 1] = top.ids[chosen]
        done = group[enough]
        exact[done], scanned[done] = top.exact[enough], scanned[done] + top.scanned[enough]
        fallback[done] = top.fallback[enough]
        ks[group] = min(2 * many, size)
        ks[done] = 0
    scanned = np.minimum(scanned, size)
    chance = min(1.0, float((last - first + 1).max()) * head.chance)  # of all calls that may come
    return offsets, ids, Provenance(exact, scanned.astype(np.int32), fallback, chance)
