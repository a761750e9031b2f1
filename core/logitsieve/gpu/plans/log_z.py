"""log Z of all logits, draws from the whole softmax, and draws from lists.

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
    dense_sums_kernel,
    list_draws_kernel,
)
from logitsieve.gpu.kernels.exact_logits import listed_logits_kernel
from logitsieve.gpu.kernels.gumbel import apply_edits_kernel, scan_gumbel_kernel
from logitsieve.gpu.kernels.log_z import log_z_kernel
from logitsieve.gpu.kernels.select_groups import select_groups_kernel
from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans import row_block
from logitsieve.gpu.plans.exact import group_of, tile_of

LISTED = 64  # groups that a slot can list
SHARES = 64  # programs that a row with an overfull slot is divided among
PROGRAMS = 8  # that share the list of a slot, or a row's edits
BLOCK = 64  # ids at a time of all of V in float64


class DeviceEdits(NamedTuple):
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
        self, matrix: Matrix, hidden: Tensor, scale: Tensor, edits: DeviceEdits | None = None
    ) -> None:
        rows, device = len(hidden), hidden.device
        self.log_z = torch.empty(rows, device=device)
        seeds = torch.zeros(rows, dtype=torch.int64, device=device)
        self._make(matrix, hidden, scale, edits, seeds, seeds.new_zeros(2), 0, None)

    def _make(
        self, matrix: Matrix, hidden: Tensor, scale: Tensor, edits: DeviceEdits | None,
        seeds: Tensor, step: Tensor, samples: int, status: Tensor | None,
    ) -> None:  # fmt: skip
        rows, device, slots = len(hidden), hidden.device, samples + 1
        self.matrix, self.hidden, self.scale, self.edits = matrix, hidden, scale, edits
        self.seeds, self.step, self.samples, self.slots = seeds, step, samples, slots
        self.group = group_of(matrix.rows)
        self.groups = cdiv(matrix.rows, self.group)

        def room(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.maxima = room(torch.float32, rows, slots, self.groups)
        self.sums = room(torch.float32, rows, self.groups)
        self.listed = room(torch.int32, rows, slots, LISTED)
        self.counts, self.overfull = (room(torch.int32, rows, slots) for _ in range(2))
        self.again, self.cuts = status is not None, room(torch.float32, rows)
        self.status = room(torch.int32, rows) if status is None else status
        self.values = room(torch.float64, rows, slots, LISTED * self.group)
        self.tops, self.totals = (room(torch.float64, rows, SHARES) for _ in range(2))

    @property
    def found(self) -> tuple[Tensor, ...]:
        return (self.log_z,)

    def run(self) -> None:
        self._scan()
        self._finish()

    def _scan(self) -> None:
        (weight, bias, _), rows = self.matrix, len(self.hidden)
        vocab_size, dim = self.matrix.rows, self.matrix.dim
        block_b = row_block(rows)
        block_v, block_d = tile_of(rows, weight)
        block_v = max(block_v, self.group)
        noise = self.scale, self.seeds, self.step
        scan_gumbel_kernel[(cdiv(vocab_size, block_v), cdiv(rows, block_b))](
            weight, bias, self.hidden, *noise, self.maxima, self.sums, self.status,
            rows, vocab_size, dim, self.groups, self.samples,
            GROUP=self.group, FALLBACK=self.again,
            BLOCK_V=block_v, BLOCK_B=block_b, BLOCK_D=block_d, num_warps=8 if block_b > 16 else 4,
        )  # fmt: skip
        if self.edits is not None:
            apply_edits_kernel[(rows, PROGRAMS)](
                weight, bias, self.hidden, *self.edits, *noise, self.maxima, self.sums,
                self.status, vocab_size, dim, self.groups, self.samples,
                GROUP=self.group, FALLBACK=self.again,
            )  # fmt: skip

    def _finish(self) -> None:
        rows = len(self.hidden)
        select_groups_kernel[(rows, self.slots)](
            self.maxima, self.sums, self.hidden, self.matrix.limits, self.scale,
            self.listed, self.counts, self.overfull, self.cuts, self.status,
            self.matrix.dim, self.groups,
            C=LISTED, GROUPS=next_power_of_2(self.groups), FALLBACK=self.again, num_warps=16,
        )  # fmt: skip
        listed_logits_kernel[(rows * self.slots, PROGRAMS)](
            *self.edited(), self.listed, self.counts, self.values, self.listed,
            self.matrix.rows, self.matrix.dim, self.slots,
            C=LISTED, GROUP=self.group, EDITS=self.edits is not None,
        )  # fmt: skip
        dense_sums_kernel[(rows, SHARES)](
            *self.edited(), self.scale, self.overfull, self.tops, self.totals,
            self.matrix.rows, self.matrix.dim, self.slots, self.share(),
            BLOCK=BLOCK, EDITS=self.edits is not None,
        )  # fmt: skip
        log_z_kernel[(rows,)](
            self.scale, self.maxima, self.sums, self.cuts, self.values, self.counts, self.overfull,
            self.tops, self.totals, self.status, self.log_z, self.groups, self.slots,
            C=LISTED, GROUP=self.group, BLOCK=1024, SHARES=SHARES, FALLBACK=self.again,
        )  # fmt: skip

    def edited(self) -> tuple[Tensor, ...]:
        """The arguments of exact logits; without edits, placeholders that no kernel reads."""
        none = DeviceEdits(self.seeds, self.listed, self.values)
        return (*self.matrix[:2], self.hidden, *(self.edits or none))

    def share(self) -> int:
        """Ids of a program for an overfull slot."""
        return int(max(BLOCK, cdiv(self.matrix.rows, SHARES)))


class DrawPlan(LogZPlan):
    """Fills `ids` [B, N] int32, -1 where a row cannot be answered, and `log_z` [B] float64.

    N may be 0. As a fallback, `after` being ids and status, it answers rows that were PASSED_ON.
    seeds [B] are uint64 held as int64, step [2] likewise: that of the request, and the number of
    the first draw. scale [1] float64 is 1 / temperature: all may be written anew between runs, as
    may `hidden`, and the ids and values of `edits`.
    """

    def __init__(
        self, matrix: Matrix, hidden: Tensor, samples: int,
        seeds: Tensor, step: Tensor, scale: Tensor, edits: DeviceEdits | None = None,
        after: tuple[Tensor, Tensor] | None = None,
    ) -> None:  # fmt: skip
        rows, device = len(hidden), hidden.device
        self.log_z = torch.empty(rows, dtype=torch.float64, device=device)
        ids = torch.empty((rows, samples), dtype=torch.int32, device=device)
        self.ids, status = after or (ids, None)
        self.scanned = torch.full((rows,), matrix.rows, dtype=torch.int32, device=device)
        self._make(matrix, hidden, scale, edits, seeds, step, samples, status)
        shape = rows, SHARES, next_power_of_2(self.slots)
        self.best = torch.empty(shape, dtype=torch.float64, device=device)
        self.owners = torch.empty(shape, dtype=torch.int32, device=device)

    @property
    def found(self) -> tuple[Tensor, ...]:
        return self.ids, self.log_z, self.scanned

    def _finish(self) -> None:
        super()._finish()
        if self.samples:
            self._choose()

    def _choose(self) -> None:
        found = self.values, self.counts, self.overfull, self.tops, self.best, self.owners
        noise, rows = (self.scale, self.seeds, self.step), len(self.hidden)
        several = next_power_of_2(self.slots)
        # A product that is not rounded before noise is added would not be the host's.
        dense_draws_kernel[(rows, SHARES)](
            *self.edited(), *noise, *found,
            self.matrix.rows, self.matrix.dim, self.slots, self.share(),
            C=LISTED, GROUP=self.group, SLOTS=several, SHARES=SHARES,
            BLOCK=BLOCK, EDITS=self.edits is not None, enable_fp_fusion=False,
        )  # fmt: skip
        argmax_draw_kernel[(rows, self.samples)](
            *noise, self.listed, *found, self.status, self.ids, self.slots,
            C=LISTED, GROUP=self.group, SLOTS=several, SHARES=SHARES,
            FALLBACK=self.again, enable_fp_fusion=False,
        )  # fmt: skip


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
        rows, samples = self.drawn.shape
        # A product that is not rounded before the best is taken from it would not be the host's.
        list_draws_kernel[(rows, cdiv(samples, BLOCK))](
            self.ids, self.logits, self.seeds, self.step, self.filters,
            self.drawn, self.log_probs, self.log_z, self.ids.shape[1], samples,
            BLOCK=BLOCK, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
