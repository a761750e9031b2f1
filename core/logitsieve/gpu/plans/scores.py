"""float32 logits of all rows of a matrix, where they are few or rank what is looked at.

Shape letters: B rows of hidden, V rows of the matrix, D hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from logitsieve.gpu.kernels.scan import scan_kernel
from logitsieve.gpu.plans import above

VALUES = 1 << 13  # of the matrix that one program loads at once


class Scores:
    """`found` [B, V] of `hidden` [B, D]: `weight` [V, D] times it, and `bias` [V]."""

    def __init__(self, weight: Tensor, bias: Tensor, hidden: Tensor) -> None:
        self._weight, self._bias, self._hidden = weight, bias, hidden
        self.found = torch.empty((len(hidden), len(weight)), device=hidden.device)

    def run(self) -> None:
        """One kernel."""
        (vocab_size, dim), rows = self._weight.shape, len(self._hidden)
        block_b = 1 if rows == 1 else min(64, above(rows, 16))
        block_d = min(128 if rows == 1 else 32, above(dim, 16))
        block_v = min(VALUES // block_d, above(vocab_size, 16)) if rows == 1 else 128
        scan_kernel[(-(-vocab_size // block_v), -(-rows // block_b))](
            # Groups of one: the largest of each is itself. Without AGAIN no status is read.
            self._weight, self._bias, self._hidden, self.found, self.found,
            rows, vocab_size, dim, vocab_size,
            GROUP=1, AGAIN=False, BLOCK_V=block_v, BLOCK_B=block_b, BLOCK_D=block_d,
        )  # fmt: skip
