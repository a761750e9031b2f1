"""Heads that select some rows of W for each query, whose exact logits then decide.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

from abc import abstractmethod

from logitsieve.api.results import ArrayLike, Candidates, Float32, Int32, Int64
from logitsieve.heads._base.head import ready_request
from logitsieve.heads._base.kernel_head import KernelHead, unproven
from logitsieve.kernels.topk.exact import listed_topk


class SelectingHead(KernelHead):
    """`select` is what a method adds."""

    @abstractmethod
    def select(self, hidden: Float32, k: int) -> tuple[Int64, Int32]:
        """CSR (offsets [B+1], distinct ids) of the rows to look at; fewer than k a row is allowed.

        Rows of hidden that are not finite may get any ids. Called by several threads at once.
        """

    def _kernel(
        self,
        address: int,
        hidden: Float32,
        ids: Int32,
        logits: Float32,
        scanned: Int32,
        start: int,
        stop: int,
    ) -> int:
        offsets, listed = self.select(hidden[start:stop], ids.shape[1])
        return int(listed_topk(address, hidden, offsets, listed, ids, logits, scanned, start))

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """The selected rows; `upper` is +inf: nothing is proven."""
        hidden, _, k = ready_request(hidden, k, self._dim, self._vocab_size)
        offsets, ids = self.select(hidden, k)
        listed = unproven(offsets, ids, self._softmax.logits(hidden, offsets, ids))
        return self._fill_short(listed, hidden, k)
