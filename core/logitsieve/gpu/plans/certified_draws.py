"""The draws of head `exact`, and log Z within bounds, from a sketch and few rows of W.

A draw is the id with the largest scale x + G, G being the noise of gumbel.py. With a bound of every
x it is found as the k best are: a pass over the codes leaves the groups that may hold it, and what
their ids' own bounds leave is computed. The ids are those of DrawPlan, which answers the rows whose
bounds leave too many in doubt.

Shape letters: B rows of hidden, V vocabulary, D hidden size, G groups of ids, N draws.
"""

from __future__ import annotations

from torch import Tensor
from triton import cdiv, next_power_of_2

from logitsieve.gpu.kernels.draws import argmax_draw_kernel
from logitsieve.gpu.kernels.envelope import edit_envelope_kernel, envelope_kernel, select_ids_kernel
from logitsieve.gpu.kernels.exact_logits import listed_logits_kernel
from logitsieve.gpu.kernels.log_z import interval_kernel
from logitsieve.gpu.kernels.select_groups import select_groups_by_bound_kernel
from logitsieve.gpu.matrix import DeviceSketch, Matrix
from logitsieve.gpu.plans import float64s, int32s
from logitsieve.gpu.plans.certified import EncodedQueries
from logitsieve.gpu.plans.draws import (
    PROGRAMS,
    SETTLED,
    SHARES,
    SIFTED,
    DeviceEdits,
    DrawInputs,
    DrawPlan,
)

LISTED = 2048  # groups that a slot can list: up to 16 for each id whose own bound is as large
ROOM = 512  # ids that a slot can list: twice the heavy ones of select_groups.py
WIDEST = 32  # rows of hidden that a program bounds at once: it holds two numbers for each


class CertifiedDrawPlan:
    """Fills `ids` [B, N], `log_z` [B, 3] and `scanned` [B]; -1, NaN and 0 where it cannot.

    log_z float64 is an estimate and what log Z is proven to lie between; the rest is as DrawPlan
    has it, and so are the arguments.
    """

    def __init__(
        self, matrix: Matrix, sketch: DeviceSketch, hidden: Tensor, samples: int,
        inputs: DrawInputs, edits: DeviceEdits | None = None,
    ) -> None:  # fmt: skip
        rows, self.samples, self.inputs = len(hidden), samples, inputs
        self.matrix, self.sketch, self.hidden, self.edits = matrix, sketch, hidden, edits
        self.coded = EncodedQueries(matrix, sketch, hidden)
        self.ids = int32s(hidden, rows, samples)
        self.log_z, self.scanned = float64s(hidden, rows, 3), int32s(hidden, rows)
        self.output = self.ids, self.log_z, self.scanned
        after = *self.output, self.coded.status
        self.fallback = DrawPlan(matrix, hidden, samples, inputs, edits, after)
        self.group, self.groups = self.fallback.group, self.fallback.groups
        slots = self.fallback.slots
        # The fallback's, which begins when they have been read: they are the most that either has.
        self.maxima, self.leaders = self.fallback.maxima, self.fallback.leaders
        self.sums = hidden.new_empty(rows, 3, self.groups)
        self.cuts = hidden.new_empty(rows, slots)
        self.listed, self.chosen = (int32s(hidden, rows, slots, n) for n in (LISTED, ROOM))
        self.counts, self.sizes = (int32s(hidden, rows, slots) for _ in range(2))
        self.values = float64s(hidden, rows, slots, ROOM)
        self.in_full = self.counts.new_zeros(rows, slots)

    def run(self) -> None:
        self.coded.run()
        self._bound()
        self._select()
        self._choose()
        self.fallback.run()

    def _bound(self) -> None:
        rows, vocab_size = len(self.hidden), self.matrix.rows
        width = self.sketch.width
        block_v, block_b = max(128, self.group), min(WIDEST, self.coded.block_b)
        envelope_kernel[(cdiv(vocab_size, block_v), cdiv(rows, block_b))](
            *self.coded.bounded(), *self.inputs, self.maxima, self.leaders, self.sums,
            self.coded.status, rows, vocab_size, self.groups, self.samples,
            WIDTH=width, GROUP=self.group, BLOCK_V=block_v, BLOCK_B=block_b,
            num_warps=4 if rows == 1 else 8,
        )  # fmt: skip
        if self.edits is not None:
            edit_envelope_kernel[(rows, PROGRAMS)](
                *self.coded.bounded(), *self.edits, *self.inputs, self.maxima, self.leaders,
                self.sums, self.coded.status, rows, vocab_size, self.groups, self.samples,
                WIDTH=width, GROUP=self.group,
            )  # fmt: skip

    def _select(self) -> None:
        rows, slots, edits = len(self.hidden), self.samples + 1, self.edits is not None
        exact = self.fallback.edited()
        select_groups_by_bound_kernel[(rows, slots)](
            *exact, *self.inputs, self.maxima, self.leaders, self.sums, self.coded.factors,
            self.listed, self.counts, self.cuts, self.coded.status,
            self.matrix.rows, self.matrix.dim, self.groups,
            C=LISTED, GROUP=self.group, GROUPS=next_power_of_2(self.groups), EDITS=edits,
            num_warps=16,
        )  # fmt: skip
        select_ids_kernel[(rows, slots)](
            *self.coded.bounded(), *exact[3:], *self.inputs,
            self.listed, self.counts, self.cuts, self.maxima, self.sums, self.chosen, self.sizes,
            self.coded.status, rows, self.matrix.rows, self.groups,
            C=LISTED, ROOM=ROOM, WIDTH=self.sketch.width, GROUP=self.group,
            BLOCK=max(SIFTED, self.group), EDITS=edits, num_warps=8,
        )  # fmt: skip
        listed_logits_kernel[(rows * slots, PROGRAMS)](
            *exact, self.chosen, self.sizes, self.values, self.chosen,
            self.matrix.rows, self.matrix.dim, slots,
            C=ROOM, GROUP=1, EDITS=edits, AT_ONCE=SETTLED,
        )  # fmt: skip

    def _choose(self) -> None:
        rows, slots, exact = len(self.hidden), self.samples + 1, self.fallback
        if self.samples:
            # Here, too, a product is rounded before noise is added.
            argmax_draw_kernel[(rows, self.samples)](
                *self.inputs, self.chosen, self.values, self.sizes, self.in_full,
                exact.tops, exact.best, exact.owners, self.coded.status, self.ids,
                slots, C=ROOM, SLOTS=next_power_of_2(slots), SHARES=SHARES, FALLBACK=False,
                enable_fp_fusion=False,
            )  # fmt: skip
        interval_kernel[(rows,)](
            self.inputs.scale, self.maxima, self.sums, self.coded.factors, self.values, self.sizes,
            self.coded.status, self.log_z, self.scanned, self.matrix.rows, self.groups, slots,
            C=ROOM, GROUP=self.group, BLOCK=1024, SLOTS=next_power_of_2(slots),
        )  # fmt: skip
