"""The screen over shards: rows are routed once, and each shard computes its part of their lists.

Shape letters: B batch rows, D hidden size, K answers.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import ArrayLike, Candidates, Float32, Int32, Int64
from logitsieve.heads._base.head import ready_request, refuse_row
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

    def _matrix(self) -> Int64:
        return self._softmax.limits

    def _kernel(
        self, address: int, hidden: Float32, ids: Int32, logits: Float32, scanned: Int32,
        start: int, stop: int,
    ) -> int:  # fmt: skip
        rows, k = hidden[start:stop], ids.shape[1]
        status, offsets, listed, _ = screen_candidates(address, rows, k, False)
        if status < 0:
            return int(status) - start
        lengths = np.diff(offsets)
        within = np.arange(max(k, lengths.max())) < lengths[:, None]
        wide_ids, wide_logits = np.full(within.shape, NO_ID), np.full(within.shape, -np.inf)
        wide_ids[within] = listed
        wide_logits[within] = self._softmax.logits64(rows, offsets, listed)
        best_ids, best_logits = best_of(wide_ids, wide_logits, k)
        ids[start:stop], logits[start:stop] = best_ids, best_logits
        scanned[start:stop] = np.where(lengths < k, -1, lengths)
        return int(status)

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """The rows of W that `topk` would look at; `upper` is +inf: nothing is proven."""
        hidden, _, k = ready_request(hidden, k, self._dim, self._vocab_size)
        status, offsets, ids, _ = screen_candidates(self._address, hidden, k, False)
        if status < 0:
            refuse_row(-1 - status)
        listed = unproven(offsets, ids, self._softmax.logits(hidden, offsets, ids))
        return self._fill_short(listed, hidden, k)
