"""Draws from what top-p and min-p leave of all of V.

A float64 pass over W, then passes over its logits alone.

Shape letters: B rows of hidden, V vocabulary, D hidden size, N draws.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from logitsieve.gpu.kernels.nucleus import (
    BITS,
    DIGITS,
    dense_logits_kernel,
    next_digit_kernel,
    nucleus_draws_kernel,
    nucleus_winners_kernel,
    weigh_digits_kernel,
)
from logitsieve.gpu.kernels.status import check_finite_kernel
from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans import float64s, int32s
from logitsieve.gpu.plans.draws import DeviceEdits, DrawInputs, edited_arguments

SHARES = 256  # programs that a row is divided among, of SMALLEST ids at least
SMALLEST = 128
COMPUTED, WEIGHED, DRAWN = 64, 32, 256  # ids that a program computes, weighs or draws from at once
LOGITS_AT_ONCE = 1 << 23  # of all rows of a plan: 64 MiB


class NucleusPlan:
    """Fills `ids` [B, N] int32, `chosen` [B, N], their logits, and `log_z` [B, 4] of what is left.

    chosen and log_z are float64, log_z as LogZPlan has it; -1 and NaN in rows that cannot be
    answered. `filters` [2] float64, which may be written anew between runs like inputs and hidden,
    are top-p and min-p. With `whole`, top-p is 1, whatever is written. `edits` are as DrawPlan has
    them.
    """

    def __init__(
        self, matrix: Matrix, hidden: Tensor, samples: int, inputs: DrawInputs,
        edits: DeviceEdits | None = None, *, whole: bool = False,
    ) -> None:  # fmt: skip
        rows, vocab_size = len(hidden), matrix.rows
        self.matrix, self.hidden, self.inputs, self.edits = matrix, hidden, inputs, edits
        self.samples, self.whole = samples, whole
        self.share = max(SMALLEST, cdiv(vocab_size, SHARES))
        self.shares = cdiv(vocab_size, self.share)
        self.filters = torch.ones_like(inputs.scale).repeat(2)
        self.status, self.logits = int32s(hidden, rows), float64s(hidden, rows, vocab_size)
        self.tops, self.rest = (float64s(hidden, rows, self.shares, n) for n in (1, 2))
        self.sums = float64s(hidden, rows, self.shares, DIGITS.value)
        self.keys = torch.zeros((rows, 2), dtype=torch.int64, device=hidden.device)
        self.masses = float64s(hidden, rows, 2)
        self.best = float64s(hidden, rows, samples, self.shares)
        self.owners = int32s(hidden, *self.best.shape)
        self.ids, self.chosen = int32s(hidden, rows, samples), float64s(hidden, rows, samples)
        self.log_z = float64s(hidden, rows, 4)
        self.output = self.ids, self.chosen, self.log_z

    def run(self) -> None:
        self._compute()
        if not self.whole:
            self._find_last()
        self._draw()

    def _compute(self) -> None:
        matrix, hidden, edits = self.matrix, self.hidden, self.edits
        check_finite_kernel[(len(hidden),)](hidden, matrix.limits, self.status, matrix.dim)
        dense_logits_kernel[(len(hidden), self.shares)](
            *edited_arguments(matrix, hidden, edits), self.status, self.logits, self.tops,
            matrix.rows, matrix.dim, self.share, BLOCK=COMPUTED, EDITS=edits is not None,
        )  # fmt: skip

    def _find_last(self) -> None:
        rows, vocab_size = len(self.hidden), self.matrix.rows
        padded, bits = next_power_of_2(self.shares), BITS.value
        for ids, length in ((False, 64), (True, (vocab_size - 1).bit_length())):
            for shift in reversed(range(0, length, bits)):
                weigh_digits_kernel[(rows, self.shares)](
                    self.logits, self.tops, self.status, self.inputs.scale, self.keys, self.sums,
                    vocab_size, self.share, self.shares, shift,
                    IDS=ids, SHARES=padded, BLOCK=WEIGHED,
                )  # fmt: skip
                next_digit_kernel[(rows,)](
                    self.filters, self.status, self.sums, self.keys, self.masses,
                    self.shares, shift, FIRST=shift + bits >= length, IDS=ids, SHARES=padded,
                    num_warps=8,
                )  # fmt: skip

    def _draw(self) -> None:
        rows, padded = len(self.hidden), next_power_of_2(self.shares)
        size = self.matrix.rows, self.share, self.shares
        block = min(DRAWN, next_power_of_2(self.share))
        # A product that is not rounded before noise is added would not be the host's.
        nucleus_draws_kernel[(rows, self.shares, self.samples)](
            self.logits, self.tops, self.status, *self.inputs, self.filters, self.keys,
            self.best, self.owners, self.rest, *size,
            SHARES=padded, BLOCK=block, enable_fp_fusion=False,
        )  # fmt: skip
        nucleus_winners_kernel[(rows, self.samples)](
            self.logits, self.tops, self.status, self.best, self.owners, self.rest,
            self.ids, self.chosen, self.log_z, *size, SHARES=padded, BLOCK=block,
        )  # fmt: skip
