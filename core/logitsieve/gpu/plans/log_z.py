"""log Z of all logits: one pass over W in float32, and what weighs much in float64.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of ids, N draws.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from logitsieve.gpu.kernels.apply_edits import patch_kernel
from logitsieve.gpu.kernels.dense_draws import crowded_sums_kernel
from logitsieve.gpu.kernels.exact_logits_groups import finalists_kernel
from logitsieve.gpu.kernels.log_z import log_z_kernel
from logitsieve.gpu.kernels.scan_gumbel import perturb_kernel
from logitsieve.gpu.kernels.select_groups import near_kernel
from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans import above
from logitsieve.gpu.plans.exact import group_of, tile_of

LISTED = 64  # groups that a slot can list
SHARES = 64  # programs that a row with a crowded slot is divided among
PROGRAMS = 8  # that share the list of a slot, or a row's edits
BLOCK = 64  # ids at a time of all of V in float64


class Edits(NamedTuple):
    """Logits instead of W's, on the device; row r owns ids[offsets[r]:offsets[r+1]]."""

    offsets: Tensor  # [B+1] int64
    ids: Tensor  # int32, distinct and rising within a row
    values: Tensor  # float64, -inf for what is banned


class LogZPlan:
    """Fills `log_z` [B] float32 of rows of `hidden` [B, D]; NaN where one cannot be answered.

    `scale` [1] float64 is what logits are multiplied with. With `edits`, log Z is of what they make
    of the logits. All of them may be written anew between runs.
    """

    def __init__(
        self, matrix: Matrix, hidden: Tensor, scale: Tensor, edits: Edits | None = None
    ) -> None:
        rows, device = len(hidden), hidden.device
        self.log_z = torch.empty(rows, device=device)
        seeds = torch.zeros(rows, dtype=torch.int64, device=device)
        self._make(matrix, hidden, scale, edits, seeds, seeds.new_zeros(2), 0, None)

    def _make(
        self, matrix: Matrix, hidden: Tensor, scale: Tensor, edits: Edits | None,
        seeds: Tensor, step: Tensor, samples: int, status: Tensor | None,
    ) -> None:  # fmt: skip
        rows, device, slots = len(hidden), hidden.device, samples + 1
        self.matrix, self.hidden, self.scale, self.edits = matrix, hidden, scale, edits
        self.seeds, self.step, self.samples, self.slots = seeds, step, samples, slots
        self.group = group_of(matrix.rows)
        self.groups = -(-matrix.rows // self.group)

        def room(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.maxima = room(torch.float32, rows, slots, self.groups)
        self.sums = room(torch.float32, rows, self.groups)
        self.listed = room(torch.int32, rows, slots, LISTED)
        self.counts, self.crowded = (room(torch.int32, rows, slots) for _ in range(2))
        self.again, self.cuts = status is not None, room(torch.float32, rows)
        self.status = room(torch.int32, rows) if status is None else status
        self.values = room(torch.float64, rows, slots, LISTED * self.group)
        self.tops, self.totals = (room(torch.float64, rows, SHARES) for _ in range(2))

    @property
    def found(self) -> tuple[Tensor, ...]:
        """log Z."""
        return (self.log_z,)

    def run(self) -> None:
        """Five kernels; that of crowded slots ends at once where no row has one."""
        self._scan()
        self._finish()

    def _scan(self) -> None:
        (weight, bias, _), rows = self.matrix, len(self.hidden)
        vocab_size, dim = self.matrix.rows, self.matrix.dim
        block_b = 1 if rows == 1 else min(64, above(rows, 16))
        block_v, block_d = tile_of(rows, weight)
        block_v = max(block_v, self.group)
        noise = self.scale, self.seeds, self.step
        perturb_kernel[(triton.cdiv(vocab_size, block_v), -(-rows // block_b))](
            weight, bias, self.hidden, *noise, self.maxima, self.sums, self.status,
            rows, vocab_size, dim, self.groups, self.samples,
            GROUP=self.group, AGAIN=self.again, BLOCK_V=block_v, BLOCK_B=block_b, BLOCK_D=block_d,
            num_warps=8 if block_b > 16 else 4,
        )  # fmt: skip
        if self.edits is not None:
            patch_kernel[(rows, PROGRAMS)](
                weight, bias, self.hidden, *self.edits, *noise, self.maxima, self.sums,
                self.status, vocab_size, dim, self.groups, self.samples,
                GROUP=self.group, AGAIN=self.again,
            )  # fmt: skip

    def _finish(self) -> None:
        rows = len(self.hidden)
        near_kernel[(rows, self.slots)](
            self.maxima, self.sums, self.hidden, self.matrix.limits, self.scale,
            self.listed, self.counts, self.crowded, self.cuts, self.status,
            self.matrix.dim, self.groups,
            C=LISTED, GROUPS=above(self.groups), AGAIN=self.again, num_warps=16,
        )  # fmt: skip
        finalists_kernel[(rows * self.slots, PROGRAMS)](
            *self.edited(), self.listed, self.counts, self.values,
            self.matrix.rows, self.matrix.dim, self.slots,
            C=LISTED, GROUP=self.group, EDITS=self.edits is not None,
        )  # fmt: skip
        crowded_sums_kernel[(rows, SHARES)](
            *self.edited(), self.scale, self.crowded, self.tops, self.totals,
            self.matrix.rows, self.matrix.dim, self.slots, self.share(),
            BLOCK=BLOCK, EDITS=self.edits is not None,
        )  # fmt: skip
        log_z_kernel[(rows,)](
            self.scale, self.maxima, self.sums, self.cuts, self.values, self.counts, self.crowded,
            self.tops, self.totals, self.status, self.log_z, self.groups, self.slots,
            C=LISTED, GROUP=self.group, BLOCK=1024, SHARES=SHARES, AGAIN=self.again,
        )  # fmt: skip

    def edited(self) -> tuple[Tensor, ...]:
        """What exact logits are made of; tensors that are not read stand for edits that are not."""
        none = Edits(self.seeds, self.listed, self.values)
        return (*self.matrix[:2], self.hidden, *(self.edits or none))

    def share(self) -> int:
        """Ids that a program looks at for a crowded slot."""
        return max(BLOCK, -(-self.matrix.rows // SHARES))
