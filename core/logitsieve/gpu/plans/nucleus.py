"""Draws from lists of ids by their logits.

Shape letters: B rows of hidden, K ids of a list, N draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

from logitsieve.gpu.kernels.nucleus import list_sample_kernel

BLOCK = 16  # draws of a program


class ListDraws:
    """Fills `drawn` [B, N] int32, `log_probs` [B, N] and `log_z` [B] float32.

    Of ids [B, K] int32 with logits [B, K] float64, best first, NaN where a row cannot be answered:
    that is drawn as its first id, with NaN. seeds [B] and step [1] are uint64 held as int64,
    filters [3] float64: 1 / temperature, top-p, min-p.
    """

    def __init__(
        self, ids: Tensor, logits: Tensor, samples: int,
        seeds: Tensor, step: Tensor, filters: Tensor,
    ) -> None:  # fmt: skip
        self.ids, self.logits, self.seeds, self.step = ids, logits, seeds, step
        self.filters, shape = filters, (len(ids), samples)
        self.drawn = torch.empty(shape, dtype=torch.int32, device=ids.device)
        self.log_probs = torch.empty(shape, device=ids.device)
        self.log_z = torch.empty(len(ids), device=ids.device)

    def run(self) -> None:
        """One kernel."""
        rows, samples = self.drawn.shape
        # A product that is not rounded before the best is taken from it would not be the host's.
        list_sample_kernel[(rows, -(-samples // BLOCK))](
            self.ids, self.logits, self.seeds, self.step, self.filters,
            self.drawn, self.log_probs, self.log_z, self.ids.shape[1], samples,
            BLOCK=BLOCK, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
