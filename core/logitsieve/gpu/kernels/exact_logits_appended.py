"""Exact logits of the ids that a row's list has grown by.

Shape letters: B rows of hidden, D hidden size, N ids of a row's list at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.rows import dot64
from logitsieve.gpu.kernels.status import WANTED


@triton.jit
def settle_kernel(
    weight, bias, hidden, ids, values, done, sizes, status, D, N: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """values [B, N] float64 from place done[r] to sizes[r]; the programs of a row share them."""
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    if tl.load(status + row) == WANTED:
        size, first = tl.load(sizes + row), tl.load(done + row) + tl.program_id(1) * BLOCK
        for start in range(first, size, tl.num_programs(1) * BLOCK):
            inside = start + lane < size
            named = tl.load(ids + row * N + start + lane, mask=inside, other=0)
            found = dot64(weight, named, inside, hidden + row * D, D)
            found += tl.load(bias + named, mask=inside, other=0.0).to(tl.float64)
            tl.store(values + row * N + start + lane, found, mask=inside)
