"""Draws from the whole softmax with log Z of all logits, and draws from lists.

One pass over W in float32, then float64 for the ids that weigh much or may be drawn: the same ids
as head `exact` draws on the host.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of ids, N draws, K ids of a
list.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from logitsieve.gpu.kernels.draws import (
    argmax_draw_kernel,
    dense_draws_kernel,
    list_draws_kernel,
)
from logitsieve.gpu.kernels.exact_log_z import dense_sums_kernel, exact_log_z_kernel
from logitsieve.gpu.kernels.exact_logits import listed_logits_kernel
from logitsieve.gpu.kernels.gumbel import apply_edits_kernel, scan_gumbel_kernel
from logitsieve.gpu.kernels.log_z import log_z_kernel
from logitsieve.gpu.kernels.select_groups import list_ids_kernel, select_groups_kernel
from logitsieve.gpu.kernels.status import WANTED, check_finite_kernel
from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans import float64s, int32s, row_block
from logitsieve.gpu.plans.exact import group_of, tile_of

LISTED = 256  # groups that a slot can list: a draw's bounds leave more once in 10^7
HELD = 64  # groups whose ids a slot can list: all of slot 0's, a few of each of a draw's
SIFTED, SETTLED = 256, 16  # ids that a program looks at, or computes, at once
SHARES = 64  # programs that a row with an overfull slot is divided among
PROGRAMS = 8  # that share the list of a slot, or a row's edits
MOST_SHARES = 1024  # the same for log Z of all rows, most of them being computed
BLOCK = 64  # ids at a time of all of V in float64
DRAWS = 16  # from a list, of a program


class DeviceEdits(NamedTuple):
    """Logits instead of W's, on the device; row r owns ids[offsets[r]:offsets[r+1]]."""

    offsets: Tensor  # [B+1] int64
    ids: Tensor  # int32, distinct and rising within a row
    values: Tensor  # float64, -inf for what is banned


class DrawInputs(NamedTuple):
    """Inputs of a plan besides hidden, which may be written anew between runs like hidden."""

    scale: Tensor  # [1] float64, by which logits are multiplied: 1 / temperature
    seeds: Tensor  # [B] uint64 held as int64
    step: Tensor  # [2] likewise: the step of the request, and the number of the first draw


def draw_inputs(hidden: Tensor) -> DrawInputs:
    """Inputs for log Z, or to be written: a scale of 1, seeds and step of 0."""
    seeds = hidden.new_zeros(len(hidden), dtype=torch.int64)
    return DrawInputs(seeds.new_ones(1, dtype=torch.float64), seeds, seeds.new_zeros(2))


class DrawPlan:
    """Fills `ids` [B, N] int32, -1 where a row cannot be answered, `log_z` [B, 3] and `scanned`.

    log_z float64 is an estimate and what log Z is proven to lie between, NaN where a row cannot be
    answered. N may be 0. With `edits`, whose ids and values may be written anew between runs too,
    draws and log Z are of what they make of the logits. As a fallback, `after` being ids, log Z,
    scanned and status, it answers rows that were PASSED_ON.
    """

    def __init__(
        self, matrix: Matrix, hidden: Tensor, samples: int, inputs: DrawInputs,
        edits: DeviceEdits | None = None, after: tuple[Tensor, ...] | None = None,
    ) -> None:  # fmt: skip
        rows, slots = len(hidden), samples + 1
        self.matrix, self.hidden, self.inputs, self.edits = matrix, hidden, inputs, edits
        self.samples, self.slots, self.again = samples, slots, after is not None
        self.group = group_of(matrix.rows)
        self.room = HELD * self.group
        self.groups = cdiv(matrix.rows, self.group)
        self.ids, self.log_z, self.scanned, self.status = after or (
            int32s(hidden, rows, samples), float64s(hidden, rows, 3),
            int32s(hidden, rows), int32s(hidden, rows),
        )  # fmt: skip
        self.maxima = hidden.new_empty(rows, slots, self.groups)
        self.leaders = hidden.new_empty(rows, samples, self.groups)
        self.sums, self.cuts = hidden.new_empty(rows, self.groups), hidden.new_empty(rows, slots)
        self.listed = int32s(hidden, rows, slots, LISTED)
        self.counts, self.sizes, self.overfull = (int32s(hidden, rows, slots) for _ in range(3))
        self.chosen = int32s(hidden, rows, slots, self.room)
        self.values = float64s(hidden, *self.chosen.shape)
        self.tops, self.totals = (float64s(hidden, rows, SHARES) for _ in range(2))
        self.best = float64s(hidden, rows, SHARES, next_power_of_2(slots))
        self.owners = int32s(hidden, *self.best.shape)
        self.output = self.ids, self.log_z, self.scanned

    def run(self) -> None:
        self._scan()
        self._sum()
        if self.samples:
            self._choose()

    def _scan(self) -> None:
        (weight, bias, _), rows = self.matrix, len(self.hidden)
        vocab_size, dim = self.matrix.rows, self.matrix.dim
        block_b, (block_v, block_d) = row_block(rows), tile_of(rows, weight, self.group)
        scan_gumbel_kernel[(cdiv(vocab_size, block_v), cdiv(rows, block_b))](
            weight, bias, self.hidden, *self.inputs, self.maxima, self.leaders, self.sums,
            self.status, rows, vocab_size, dim, self.groups, self.samples,
            GROUP=self.group, FALLBACK=self.again,
            BLOCK_V=block_v, BLOCK_B=block_b, BLOCK_D=block_d, num_warps=8 if block_b > 16 else 4,
        )  # fmt: skip
        if self.edits is not None:
            apply_edits_kernel[(rows, PROGRAMS)](
                weight, bias, self.hidden, *self.edits, *self.inputs, self.maxima, self.leaders,
                self.sums, self.status, vocab_size, dim, self.groups, self.samples,
                GROUP=self.group, FALLBACK=self.again,
            )  # fmt: skip

    def _sum(self) -> None:
        rows = len(self.hidden)
        select_groups_kernel[(rows, self.slots)](
            self.maxima, self.leaders, self.sums, self.hidden, self.matrix.limits, *self.inputs,
            self.listed, self.counts, self.overfull, self.cuts, self.status,
            self.matrix.dim, self.groups,
            C=LISTED, ROOM=self.room, GROUP=self.group, GROUPS=next_power_of_2(self.groups),
            FALLBACK=self.again, num_warps=16,
        )  # fmt: skip
        list_ids_kernel[(rows, self.slots)](
            self.maxima, *self.inputs, self.listed, self.counts, self.cuts, self.overfull,
            self.chosen, self.sizes, self.matrix.rows, self.groups,
            C=LISTED, ROOM=self.room, GROUP=self.group, BLOCK=max(SIFTED, self.group),
        )  # fmt: skip
        listed_logits_kernel[(rows * self.slots, PROGRAMS)](
            *self.edited(), self.chosen, self.sizes, self.values, self.chosen,
            self.matrix.rows, self.matrix.dim, self.slots,
            C=self.room, GROUP=1, EDITS=self.edits is not None, AT_ONCE=SETTLED,
        )  # fmt: skip
        dense_sums_kernel[(rows, SHARES)](
            *self.edited(), self.inputs.scale, self.overfull, self.tops, self.totals,
            self.matrix.rows, self.matrix.dim, self.slots, self.share(),
            MARK=1, BLOCK=BLOCK, EDITS=self.edits is not None,
        )  # fmt: skip
        log_z_kernel[(rows,)](
            self.hidden, self.matrix.limits, self.inputs.scale,
            self.maxima, self.sums, self.cuts, self.values, self.sizes,
            self.overfull, self.tops, self.totals, self.status, self.log_z, self.scanned,
            self.matrix.rows, self.matrix.dim, self.groups, self.slots,
            C=self.room, BLOCK=1024, SHARES=SHARES, FALLBACK=self.again,
        )  # fmt: skip

    def _choose(self) -> None:
        summed = self.values, self.sizes, self.overfull, self.tops, self.best, self.owners
        rows, slots = len(self.hidden), self.best.shape[2]
        # A product that is not rounded before noise is added would not be the host's.
        dense_draws_kernel[(rows, SHARES)](
            *self.edited(), *self.inputs, *summed,
            self.matrix.rows, self.matrix.dim, self.slots, self.share(),
            C=self.room, SLOTS=slots, SHARES=SHARES, BLOCK=BLOCK,
            EDITS=self.edits is not None, enable_fp_fusion=False,
        )  # fmt: skip
        argmax_draw_kernel[(rows, self.samples)](
            *self.inputs, self.chosen, *summed, self.status, self.ids, self.slots,
            C=self.room, SLOTS=slots, SHARES=SHARES, FALLBACK=self.again,
            enable_fp_fusion=False,
        )  # fmt: skip

    def edited(self) -> tuple[Tensor, ...]:
        """The arguments of exact logits."""
        return edited_arguments(self.matrix, self.hidden, self.edits)

    def share(self) -> int:
        """Ids of a program for an overfull slot."""
        return int(max(BLOCK, cdiv(self.matrix.rows, SHARES)))


class LogZPlan:
    """Fills `log_z` [B, 4] float64: TOP, VALUE, LOW and HIGH of kernels/sampling/log_z.py.

    From exact logits of all ids; NaN where a row cannot be answered. `inputs` and `edits` are as
    DrawPlan has them.
    """

    samples = 0

    def __init__(
        self, matrix: Matrix, hidden: Tensor, inputs: DrawInputs, edits: DeviceEdits | None = None
    ) -> None:
        rows = len(hidden)
        self.matrix, self.hidden, self.inputs, self.edits = matrix, hidden, inputs, edits
        self.share = max(BLOCK, cdiv(matrix.rows, MOST_SHARES))
        self.shares = cdiv(matrix.rows, self.share)
        self.tops, self.totals = (float64s(hidden, rows, self.shares) for _ in range(2))
        self.status, self.log_z = int32s(hidden, rows), float64s(hidden, rows, 4)
        self.output = (self.log_z,)

    def run(self) -> None:
        (vocab_size, dim), rows = self.matrix.weight.shape, len(self.hidden)
        check_finite_kernel[(rows,)](self.hidden, self.matrix.limits, self.status, dim)
        dense_sums_kernel[(rows, self.shares)](
            *edited_arguments(self.matrix, self.hidden, self.edits), self.inputs.scale,
            self.status, self.tops, self.totals, vocab_size, dim, 1, self.share,
            MARK=WANTED.value, BLOCK=BLOCK, EDITS=self.edits is not None,
        )  # fmt: skip
        exact_log_z_kernel[(rows,)](
            self.inputs.scale, self.tops, self.totals, self.status, self.log_z,
            vocab_size, self.shares, self.share,
            SHARES=next_power_of_2(self.shares), BLOCK=BLOCK,
        )  # fmt: skip


def edited_arguments(
    matrix: Matrix, hidden: Tensor, edits: DeviceEdits | None
) -> tuple[Tensor, ...]:
    """The arguments of exact logits; without edits, placeholders that no kernel reads."""
    return (*matrix[:2], hidden, *(edits or (hidden, hidden, hidden)))


def draw_listed(
    ids: Tensor, logits: Tensor, samples: int, seeds: Tensor, step: Tensor, filters: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws int32 [B, N], their logits float64 [B, N], and log Z [B, 4] of what filters leave.

    Drawn from ids [B, K] int32 with logits [B, K] float64, best first. A row that cannot be
    answered has logits of NaN: its first id is drawn, with NaN. seeds [B] and step [1] are uint64
    held as int64, filters [3] float64: 1 / temperature, top-p, min-p.
    """
    rows, drawn = len(ids), int32s(ids, len(ids), samples)
    chosen, log_z = float64s(ids, rows, samples), float64s(ids, rows, 4)
    # A product that is not rounded before the best is taken from it would not be the host's.
    list_draws_kernel[(rows, cdiv(samples, DRAWS))](
        ids, logits, seeds, step, filters, drawn, chosen, log_z, ids.shape[1], samples,
        KEPT=next_power_of_2(ids.shape[1]), BLOCK=min(DRAWS, next_power_of_2(samples)),
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return drawn, chosen, log_z
