"""Contexts as the sketch has them, and what every bound of their logits is made of.

Shape letters: B rows of hidden, D hidden size, T bytes of a row of codes.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from logitsieve.gpu.kernels.encode_query import FACTORS, describe_kernel
from logitsieve.gpu.kernels.rotate import rotate_kernel
from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans import above
from logitsieve.gpu.sketch import LANES, STEP, Sketch


class Coded:
    """`planes` [B, 2, T], `factors` [B, FACTORS] and `status` [B] of `hidden` [B, D].

    With a `status` that is given, those of rows that were PASSED_ON.
    """

    def __init__(
        self, matrix: Matrix, sketch: Sketch, hidden: Tensor, status: Tensor | None = None
    ) -> None:
        rows, device = len(hidden), hidden.device
        self.matrix, self.sketch, self.hidden = matrix, sketch, hidden
        self.block_b = 1 if rows == 1 else min(64, above(rows, 16))
        self.rotated = torch.empty((rows, matrix.dim), device=device)
        self.planes = torch.empty((rows, 2, sketch.width), dtype=torch.int8, device=device)
        # Zeros, as rows that are not described are bounded beside those that are.
        self.factors = torch.zeros((rows, int(FACTORS)), dtype=torch.float64, device=device)
        self.again = status is not None
        own = torch.empty(rows, dtype=torch.int32, device=device)
        self.status = own if status is None else status

    def run(self) -> None:
        """Two kernels."""
        rows, dim, sketch = len(self.hidden), self.matrix.dim, self.sketch
        block_c, step = (16, LANES) if rows == 1 else (32, STEP)
        rotate_kernel[(triton.cdiv(dim, block_c), triton.cdiv(rows, self.block_b))](
            sketch.basis, self.hidden, self.status, self.rotated, rows, dim,
            AGAIN=self.again, BLOCK_C=block_c, BLOCK_B=self.block_b, STEP=step,
        )  # fmt: skip
        describe_kernel[(rows,)](
            self.hidden, self.rotated, self.matrix.limits, sketch.terms, self.planes,
            self.factors, self.status, dim, sketch.coded,
            WIDTH=sketch.width, AGAIN=self.again, BLOCK=256,
        )  # fmt: skip

    def bounded(self) -> tuple[Tensor, ...]:
        """What bounds.py makes bounds of."""
        sketch = self.sketch
        own = self.planes, self.factors
        return sketch.codes, sketch.scales, sketch.rests, self.matrix.bias, *own
