"""Exact logits of named ids, or of all of V, in float64.

Shape letters: B rows of hidden, V vocabulary, D hidden size, M ids of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from logitsieve.gpu.kernels.exact_logits_ids import gather_kernel
from logitsieve.gpu.matrix import Matrix

BLOCK = 16  # ids of a program


class LogitsPlan:
    """Fills `logits` [B, M] float64 of `ids` [B, M] int32, or [B, V] of all ids.

    They are those of `hidden` [B, D] at the time of `run`: -inf where an id is negative, NaN in
    rows that are not finite or too large. Rows that want all ids come in chunks that fit in memory.
    """

    def __init__(self, matrix: Matrix, hidden: Tensor, ids: Tensor | None = None) -> None:
        self.matrix, self.hidden, self.ids = matrix, hidden, ids
        shape = (len(hidden), matrix.rows) if ids is None else ids.shape
        self.logits = torch.empty(shape, dtype=torch.float64, device=hidden.device)

    def run(self) -> None:
        """One kernel."""
        weight, bias, limits = self.matrix
        rows, count = self.logits.shape
        # Rows are the first axis: blocks of W that they share are read at about the same time.
        gather_kernel[(rows, -(-count // BLOCK))](
            weight, bias, self.hidden, limits, bias if self.ids is None else self.ids, self.logits,
            self.matrix.rows, self.matrix.dim, count, BLOCK=BLOCK, ALL=self.ids is None,
        )  # fmt: skip
