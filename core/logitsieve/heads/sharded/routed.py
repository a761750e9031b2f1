"""The screen over shards: rows are routed once, and each shard computes its part of their lists.

Shape letters: B batch rows, D hidden size, K answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Self

import numpy as np

from logitsieve.api.results import ArrayLike, Candidates, Float32, Float64, Int32, Int64
from logitsieve.heads._base.head import Head, ready_request, refuse_row
from logitsieve.heads._base.kernel_head import unproven
from logitsieve.heads.screen import ScreenHead
from logitsieve.heads.sharded.softmax import ShardedSoftmax, best_of
from logitsieve.kernels.screen.screen import screen_candidates

NO_ID = np.iinfo(np.int32).max  # fills up lists; no id is as large


class ShardedScreen(ScreenHead):
    """`ScreenHead` with the lists of the whole vocabulary in one place: the same answers."""

    _softmax: ShardedSoftmax

    def _prepare(self) -> None:
        """Make nothing: `_kernel` is a method."""

    def over(self, softmax: ShardedSoftmax, heads: Mapping[str, Head]) -> Self:
        """The head over other shards of the softmax, with fallbacks among `heads`."""
        assert self._fallback
        other = copy(self)
        other._softmax, other._fallback = softmax, heads[self._fallback.name]
        return other

    def _matrix(self) -> Int64:
        return self._softmax.limits

    def _kernel(
        self, address: int, hidden: Float32, ids: Int32, logits: Float32, scanned: Int32,
        start: int, stop: int,
    ) -> int:  # fmt: skip
        rows, k = hidden[start:stop], ids.shape[1]
        status, offsets, listed, values = self._listed(address, rows, k)
        if status < 0:
            return status - start
        lengths = np.diff(offsets)
        within = np.arange(max(k, lengths.max())) < lengths[:, None]
        wide_ids, wide_logits = np.full(within.shape, NO_ID), np.full(within.shape, -np.inf)
        wide_ids[within], wide_logits[within] = listed, values
        best_ids, best_logits = best_of(wide_ids, wide_logits, k)
        ids[start:stop], logits[start:stop] = best_ids, best_logits
        scanned[start:stop] = np.where(lengths < k, -1, lengths)
        return status

    def _listed(self, address: int, hidden: Float32, k: int) -> tuple[int, Int64, Int32, Float64]:
        """CSR candidates and their logits; the status is that of `screen_candidates`."""
        status, offsets, ids, _ = screen_candidates(address, hidden, k, False)
        if status < 0:
            return int(status), offsets, ids, np.empty(0)
        logits = self._softmax.logits64(hidden, offsets, ids)
        if self._softmax.lost:
            kept = logits > -np.inf
            offsets = np.concatenate([[0], np.cumsum(kept)])[offsets]
            ids, logits = ids[kept], logits[kept]
        return int((np.diff(offsets) < k).sum()), offsets, ids, logits

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """The rows of W that `topk` would look at; `upper` is +inf: nothing is proven."""
        hidden, _, k = ready_request(hidden, k, self._dim, self._vocab_size)
        status, offsets, ids, logits = self._listed(self._address, hidden, k)
        if status < 0:
            refuse_row(-1 - status)
        listed = unproven(offsets, ids, logits.astype(np.float32))
        return self._fill_short(listed, hidden, k)
