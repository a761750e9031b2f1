"""Heads that select some rows of W for each query, whose exact logits then decide.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, S rows selected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from logitsieve.api.results import ArrayLike, Candidates, Float32, Int32, Int64, TopK
from logitsieve.heads._base.fallback import repair, replace_rows, worst_status
from logitsieve.heads._base.fallback_head import FallbackHead
from logitsieve.heads._base.head import checked_k, ready_hidden
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.topk.listed import listed_topk


class SelectingHead(FallbackHead, ABC):
    """`select` is what a method adds."""

    @abstractmethod
    def select(self, hidden: Float32, k: int) -> tuple[Int64, Int32]:
        """CSR (offsets [B+1], distinct ids) of the rows to look at; fewer than k a row is allowed.

        Rows of hidden that are not finite may get any ids. Called by several threads at once.
        """

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        """The k best selected rows; rows of hidden with fewer than k go to the fallback."""
        hidden = ready_hidden(hidden, self._softmax.dim)
        k = checked_k(k, self._softmax.vocab_size)
        rows = hidden.shape[0]
        ids, logits = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
        scanned, exact = np.empty(rows, np.int32), np.zeros(rows, np.bool_)

        rank, address = listed_topk.entry(), self._softmax.record.ctypes.data

        def answer(start: int, stop: int) -> int:
            offsets, listed = self.select(hidden[start:stop], k)
            return int(rank(address, hidden, offsets, listed, ids, logits, scanned, start))

        unfilled = worst_status(run_slices(answer, rows, self._threads))
        if unfilled:
            repair(self._fallback, unfilled, hidden, k, TopK(ids, logits, exact, scanned))
        return TopK(ids, logits, exact, scanned)

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """The selected rows; `upper` is +inf: nothing is proven."""
        hidden = ready_hidden(hidden, self._softmax.dim)
        k = checked_k(k, self._softmax.vocab_size)
        offsets, ids = self.select(hidden, k)
        logits = self._softmax.logits(hidden, offsets, ids)
        upper = np.full(hidden.shape[0], np.inf, np.float32)
        found = Candidates(offsets, ids, logits, upper)
        rows = np.diff(offsets) < k
        if not rows.any():
            return found
        return replace_rows(found, rows, self._fallback.candidates(hidden[rows], k))

    def warm(self) -> None:
        """The kernels are compiled when first called; this calls each once."""
        zeros = np.zeros((1, self._softmax.dim), np.float32)
        self.topk(zeros, 1)
        self.candidates(zeros, 1)
