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
from logitsieve.gpu.kernels.encode_query import FACTORS, encode_query_kernel, product_kernel
from logitsieve.gpu.kernels.exact_logits import appended_logits_kernel
from logitsieve.gpu.kernels.topk import rank_kernel
from logitsieve.gpu.matrix import LANES, STEP, DeviceSketch, Matrix
from logitsieve.gpu.plans import After, empty_output, float64s, int32s, row_block
from logitsieve.gpu.plans.exact import ExactPlan, group_of

SEEDS = 2  # groups whose rows give the threshold, for each answer: kernels/sketch/thresholds.py
LEAST_ROOM, MOST_ROOM = 256, 4096  # ids of a row's list, so that one program can rank it
BOUNDED, SETTLED = 64, 16  # rows that a program bounds again, or computes, at once
PROGRAMS = 2048  # that these two steps are divided among


class EncodedQueries:
    """`planes` [B, 2, T], `factors` [B, FACTORS] and `status` [B] of `hidden` [B, D].

    With a `status` that is given, those of rows that were PASSED_ON.
    """

    def __init__(
        self, matrix: Matrix, sketch: DeviceSketch, hidden: Tensor, status: Tensor | None = None
    ) -> None:
        rows, self.again = len(hidden), status is not None
        self.matrix, self.sketch, self.hidden = matrix, sketch, hidden
        self.block_b = row_block(rows)
        self.products, self.turned = hidden.new_empty(2, rows, sketch.span)
        self.planes = hidden.new_empty((rows, 2, sketch.width), dtype=torch.int8)
        # Zeros, as rows that are not described are bounded beside those that are.
        self.factors = hidden.new_zeros((rows, int(FACTORS)), dtype=torch.float64)
        self.status = int32s(hidden, rows) if status is None else status

    def run(self) -> None:
        rows, sketch = len(self.hidden), self.sketch
        self._multiply(sketch.directions, self.hidden, self.products)
        self._multiply(sketch.triangle, self.products, self.turned)
        encode_query_kernel[(rows,)](
            self.hidden, sketch.stretch, self.products, self.turned, self.matrix.limits,
            sketch.terms, self.planes, self.factors, self.status,
            self.matrix.dim, sketch.span, sketch.coded,
            WIDTH=sketch.width, FALLBACK=self.again, BLOCK=256,
        )  # fmt: skip

    def _multiply(self, matrix: Tensor, vectors: Tensor, products: Tensor) -> None:
        rows, block_n, step = len(vectors), *((16, LANES) if len(vectors) == 1 else (32, STEP))
        product_kernel[(cdiv(len(matrix), block_n), cdiv(rows, self.block_b))](
            matrix, vectors, self.status, products, rows, *matrix.shape,
            FALLBACK=self.again, BLOCK_N=block_n, BLOCK_B=self.block_b, STEP=step,
        )  # fmt: skip

    def bounded(self) -> tuple[Tensor, ...]:
        """The arguments of every kernel that bounds logits."""
        sketch = self.sketch
        return (
            sketch.codes,
            sketch.scales,
            sketch.rests,
            self.matrix.bias,
            self.planes,
            self.factors,
        )


def room_of(vocab_size: int) -> int:
    """Ids of a row's list: with a quarter of W to compute, a pass over all of it is quicker."""
    return int(min(MOST_ROOM, max(LEAST_ROOM, next_power_of_2(vocab_size) // 4)))


class CertifiedPlan:
    """Answers `hidden` into `output`. As a fallback it answers the rows that were PASSED_ON."""

    def __init__(
        self, matrix: Matrix, sketch: DeviceSketch, hidden: Tensor, k: int,
        after: After | None = None,
    ) -> None:  # fmt: skip
        rows = len(hidden)
        self.matrix, self.sketch, self.hidden, self.k = matrix, sketch, hidden, k
        self.group = group_of(matrix.rows)
        self.groups, self.room = cdiv(matrix.rows, self.group), room_of(matrix.rows)
        self.output, status = after or (empty_output(rows, k, hidden.device), None)
        self.coded = EncodedQueries(matrix, sketch, hidden, status)
        self.status = self.coded.status
        self.maxima, self.ends = hidden.new_empty(rows, self.groups), hidden.new_empty(2, rows)
        self.counts, self.sizes, self.done = (int32s(hidden, rows) for _ in range(3))
        self.listed, self.ids = (int32s(hidden, rows, self.room) for _ in range(2))
        self.values = float64s(hidden, rows, self.room)
        self.best = float64s(hidden, rows, max(8, next_power_of_2(k)))
        self.fallback = ExactPlan(matrix, hidden, k, (self.output, self.status))

    def run(self) -> None:
        self.coded.run()
        rows, block_v, block_b = len(self.hidden), max(128, self.group), self.coded.block_b
        bounds_kernel[(cdiv(self.matrix.rows, block_v), cdiv(rows, block_b))](
            *self.coded.bounded(), self.status, self.maxima, rows, self.matrix.rows, self.groups,
            WIDTH=self.sketch.width, GROUP=self.group, BLOCK_V=block_v, BLOCK_B=block_b,
            num_warps=4 if rows == 1 else 8,
        )  # fmt: skip
        seed_kernel[(rows,)](
            self.maxima, self.listed, self.counts, self.ends, self.sizes, self.done, self.status,
            self.groups, SEEDS * self.k,
            C=self.room, GROUPS=next_power_of_2(self.groups), num_warps=16,
        )  # fmt: skip
        self._settle()
        cut_kernel[(rows,)](
            self.maxima, self.values, self.sizes, self.coded.factors, self.listed, self.counts,
            self.ends, self.done, self.status, self.groups, self.k,
            C=self.room, GROUPS=next_power_of_2(self.groups), N=self.room, num_warps=16,
        )  # fmt: skip
        self._settle()
        rank_kernel[(rows,)](
            self.values, self.ids, self.sizes, self.status, self.best, *self.output,
            self.k, 1, self.matrix.rows,
            L=self.room, KEPT=self.best.shape[1], PROVEN=True, COUNTED=True, num_warps=8,
        )  # fmt: skip
        self.fallback.run()

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
