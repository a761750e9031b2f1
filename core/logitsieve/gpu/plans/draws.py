"""Draws from the whole softmax, the same ids as head `exact` draws on the host, and log Z.

Shape letters: B rows of hidden, D hidden size, N draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

from logitsieve.gpu.kernels.argmax_draw import winner_kernel
from logitsieve.gpu.kernels.dense_draws import crowded_draws_kernel
from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans import above
from logitsieve.gpu.plans.log_z import BLOCK, LISTED, SHARES, Edits, LogZPlan


class DrawPlan(LogZPlan):
    """Fills `ids` [B, N] int32, -1 where a row cannot be answered, and `log_z` [B] float64.

    N may be 0. As a fallback, `after` being ids and status, it answers rows that were PASSED_ON.
    seeds [B] are uint64 held as int64, step [2] likewise: that of the request, and the number of
    the first draw. scale [1] float64 is 1 / temperature: all may be written anew between runs, as
    may `hidden`, and the ids and values of `edits`.
    """

    def __init__(
        self, matrix: Matrix, hidden: Tensor, samples: int,
        seeds: Tensor, step: Tensor, scale: Tensor, edits: Edits | None = None,
        after: tuple[Tensor, Tensor] | None = None,
    ) -> None:  # fmt: skip
        rows, device = len(hidden), hidden.device
        self.log_z = torch.empty(rows, dtype=torch.float64, device=device)
        ids = torch.empty((rows, samples), dtype=torch.int32, device=device)
        self.ids, status = after or (ids, None)
        self.scanned = torch.full((rows,), matrix.rows, dtype=torch.int32, device=device)
        self._make(matrix, hidden, scale, edits, seeds, step, samples, status)
        shape = rows, SHARES, above(self.slots)
        self.best = torch.empty(shape, dtype=torch.float64, device=device)
        self.owners = torch.empty(shape, dtype=torch.int32, device=device)

    @property
    def found(self) -> tuple[Tensor, ...]:
        """The ids, log Z, and how many rows of W were looked at."""
        return self.ids, self.log_z, self.scanned

    def _finish(self) -> None:
        """Two kernels more; that of crowded slots ends at once where no row has one."""
        super()._finish()
        if self.samples:
            self._choose()

    def _choose(self) -> None:
        found = self.values, self.counts, self.crowded, self.tops, self.best, self.owners
        noise, rows = (self.scale, self.seeds, self.step), len(self.hidden)
        several = above(self.slots)
        # A product that is not rounded before noise is added would not be the host's.
        crowded_draws_kernel[(rows, SHARES)](
            *self.edited(), *noise, *found,
            self.matrix.rows, self.matrix.dim, self.slots, self.share(),
            C=LISTED, GROUP=self.group, SLOTS=several, SHARES=SHARES,
            BLOCK=BLOCK, EDITS=self.edits is not None, enable_fp_fusion=False,
        )  # fmt: skip
        winner_kernel[(rows, self.samples)](
            *noise, self.listed, *found, self.status, self.ids, self.slots,
            C=LISTED, GROUP=self.group, SLOTS=several, SHARES=SHARES,
            AGAIN=self.again, enable_fp_fusion=False,
        )  # fmt: skip
