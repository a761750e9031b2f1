"""The k best with a proof, from a bound of every row that costs few bytes to read.

Where the bounds leave too many rows in doubt, the exact plan answers instead.

Shape letters: B rows of hidden, V vocabulary, D hidden size, K answers, G groups of rows, N ids of
a row's list, T bytes of a row of codes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from logitsieve.gpu.kernels.bounds import bounds_kernel, cut_kernel, seed_kernel, sieve_kernel
from logitsieve.gpu.kernels.encode_query import FACTORS, encode_query_kernel, rotate_kernel
from logitsieve.gpu.kernels.exact_logits import appended_logits_kernel
from logitsieve.gpu.kernels.topk import rank_kernel
from logitsieve.gpu.matrix import LANES, STEP, DeviceSketch, Matrix
from logitsieve.gpu.plans import PlanOutput, empty_output, row_block
from logitsieve.gpu.plans.exact import ExactPlan, fits, group_of


class EncodedQueries:
    """`planes` [B, 2, T], `factors` [B, FACTORS] and `status` [B] of `hidden` [B, D].

    With a `status` that is given, those of rows that were PASSED_ON.
    """

    def __init__(
        self, matrix: Matrix, sketch: DeviceSketch, hidden: Tensor, status: Tensor | None = None
    ) -> None:
        rows, device = len(hidden), hidden.device
        self.matrix, self.sketch, self.hidden = matrix, sketch, hidden
        self.block_b = row_block(rows)
        self.rotated = torch.empty((rows, matrix.dim), device=device)
        self.planes = torch.empty((rows, 2, sketch.width), dtype=torch.int8, device=device)
        # Zeros, as rows that are not described are bounded beside those that are.
        self.factors = torch.zeros((rows, int(FACTORS)), dtype=torch.float64, device=device)
        self.again = status is not None
        own = torch.empty(rows, dtype=torch.int32, device=device)
        self.status = own if status is None else status

    def run(self) -> None:
        rows, dim, sketch = len(self.hidden), self.matrix.dim, self.sketch
        block_c, step = (16, LANES) if rows == 1 else (32, STEP)
        rotate_kernel[(cdiv(dim, block_c), cdiv(rows, self.block_b))](
            sketch.basis, self.hidden, self.status, self.rotated, rows, dim,
            FALLBACK=self.again, BLOCK_C=block_c, BLOCK_B=self.block_b, STEP=step,
        )  # fmt: skip
        encode_query_kernel[(rows,)](
            self.hidden, self.rotated, self.matrix.limits, sketch.terms, self.planes,
            self.factors, self.status, dim, sketch.coded,
            WIDTH=sketch.width, FALLBACK=self.again, BLOCK=256,
        )  # fmt: skip

    def bounded(self) -> tuple[Tensor, ...]:
        """The arguments of every kernel that bounds logits."""
        sketch = self.sketch
        own = self.planes, self.factors
        return sketch.codes, sketch.scales, sketch.rests, self.matrix.bias, *own


__all__ = ["CertifiedPlan", "fits"]

SEEDS = 2  # groups whose rows give the threshold, for each answer: kernels/sketch/thresholds.py
LEAST_ROOM, MOST_ROOM = 256, 4096  # ids of a row's list, so that one program can rank it
BOUNDED, SETTLED = 64, 16  # rows that a program bounds again, or computes, at once
PROGRAMS = 2048  # that these two steps are divided among


def room_of(vocab_size: int) -> int:
    """Ids of a row's list: with a quarter of W to compute, a pass over all of it is quicker."""
    return int(min(MOST_ROOM, max(LEAST_ROOM, next_power_of_2(vocab_size) // 4)))


class CertifiedPlan:
    """Answers `hidden` into `found`. As a fallback it answers the rows that were PASSED_ON."""

    def __init__(
        self,
        matrix: Matrix,
        sketch: DeviceSketch,
        hidden: Tensor,
        k: int,
        after: tuple[PlanOutput, Tensor] | None = None,
    ) -> None:
        rows, device = len(hidden), hidden.device
        self.matrix, self.sketch, self.hidden, self.k = matrix, sketch, hidden, k
        self.group = group_of(matrix.rows)
        self.groups, self.room = cdiv(matrix.rows, self.group), room_of(matrix.rows)
        status = after[1] if after else None
        self.found = after[0] if after else empty_output(rows, k, device)
        self.coded = EncodedQueries(matrix, sketch, hidden, status)
        self.status = self.coded.status
        self.maxima = torch.empty((rows, self.groups), device=device)
        self.ends = torch.empty((2, rows), device=device)
        self.counts, self.listed = self._integers(rows), self._integers(rows, self.room)
        self.sizes, self.done, self.ids = (
            self._integers(rows),
            self._integers(rows),
            self._integers(rows, self.room),
        )
        self.values = torch.empty((rows, self.room), dtype=torch.float64, device=device)
        self.best = torch.empty(
            (rows, max(8, next_power_of_2(k))), dtype=torch.float64, device=device
        )
        self.fallback = ExactPlan(matrix, hidden, k, after=(self.found, self.status))

    def _integers(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=self.hidden.device)

    def run(self) -> None:
        self.coded.run()
        self._bound()
        self._seed()
        self._settle()
        self._cut()
        self._settle()
        self._rank()
        self.fallback.run()

    def _bound(self) -> None:
        rows, block_v, block_b = len(self.hidden), max(128, self.group), self.coded.block_b
        bounds_kernel[(cdiv(self.matrix.rows, block_v), cdiv(rows, block_b))](
            *self.coded.bounded(), self.status, self.maxima, rows, self.matrix.rows, self.groups,
            WIDTH=self.sketch.width, GROUP=self.group, BLOCK_V=block_v, BLOCK_B=block_b,
            num_warps=4 if rows == 1 else 8,
        )  # fmt: skip

    def _seed(self) -> None:
        seed_kernel[(len(self.hidden),)](
            self.maxima, self.listed, self.counts, self.ends, self.sizes, self.done, self.status,
            self.groups, SEEDS * self.k,
            C=self.room, GROUPS=next_power_of_2(self.groups), num_warps=16,
        )  # fmt: skip

    def _cut(self) -> None:
        cut_kernel[(len(self.hidden),)](
            self.maxima, self.values, self.sizes, self.coded.factors, self.listed, self.counts,
            self.ends, self.done, self.status, self.groups, self.k,
            C=self.room, GROUPS=next_power_of_2(self.groups), N=self.room, num_warps=16,
        )  # fmt: skip

    def _settle(self) -> None:
        (weight, bias, _), rows = self.matrix, len(self.hidden)
        block, programs = max(BOUNDED, self.group), cdiv(PROGRAMS, rows)
        sieve_kernel[(rows, min(programs, cdiv(self.groups * self.group, block)))](
            *self.coded.bounded(),
            self.listed, self.counts, self.ends, self.ids, self.sizes, self.status,
            rows, self.matrix.rows,
            C=self.room, N=self.room, GROUP=self.group, WIDTH=self.sketch.width, BLOCK=block,
        )  # fmt: skip
        appended_logits_kernel[(rows, min(programs, self.room // SETTLED))](
            weight, bias, self.hidden, self.ids, self.values, self.done, self.sizes, self.status,
            self.matrix.dim, N=self.room, BLOCK=SETTLED, num_warps=1,
        )  # fmt: skip

    def _rank(self) -> None:
        rank_kernel[(len(self.hidden),)](
            self.values, self.ids, self.sizes, self.status, self.best, *self.found,
            self.k, 1, self.matrix.rows,
            L=self.room, KEPT=self.best.shape[1], PROVEN=True, COUNTED=True, num_warps=8,
        )  # fmt: skip
