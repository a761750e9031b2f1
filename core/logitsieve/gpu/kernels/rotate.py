"""The coordinates of contexts, c = B h, for the sketch.

Their error is part of every bound, so no float32 sum is long: at many rows 32 products are added
on the tensor cores, at one row D / 128 of each lane, and these sums in float64.

Shape letters: B rows of hidden, D hidden size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.status import PASSED_ON, any_of


@triton.jit
def rotate_kernel(
    basis, hidden, status, rotated, B, D,
    AGAIN: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_B: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """rotated [B, D] float32; programs are (tiles of BLOCK_C coordinates, BLOCK_B rows).

    STEP is sketch.STEP at many rows and sketch.LANES at one. AGAIN: as a fallback.
    """
    places = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    rows = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    wanted = True
    if AGAIN:
        wanted = any_of(status, rows, B, PASSED_ON)
    if wanted:
        dots = _dots(basis, hidden, places, rows, B, D, STEP).to(tl.float32)
        mask = (places < D)[:, None] & (rows < B)[None, :]
        tl.store(rotated + rows.to(tl.int64)[None, :] * D + places[:, None], dots, mask=mask)


@triton.jit
def _dots(basis, hidden, places, rows, B, D, STEP: tl.constexpr):
    """float64 [places, rows]."""
    inside, real, lane = places < D, rows < B, tl.arange(0, STEP)
    starts = basis + places.to(tl.int64)[:, None] * D
    if rows.shape[0] == 1:
        row = hidden + tl.sum(rows, 0).to(tl.int64) * D
        sums = tl.zeros([places.shape[0], STEP], tl.float32)
        for d in tl.range(0, D, STEP, loop_unroll_factor=4):
            within = d + lane < D
            mask = inside[:, None] & within[None, :]
            b = tl.load(starts + (d + lane)[None, :], mask=mask, other=0.0)
            sums += b * tl.load(row + d + lane, mask=within, other=0.0)[None, :]
        dots = tl.sum(sums.to(tl.float64), 1)[:, None]
    else:
        columns = hidden + rows.to(tl.int64)[None, :] * D
        dots = tl.zeros([places.shape[0], rows.shape[0]], tl.float64)
        for d in range(0, D, STEP):
            within = d + lane < D
            mask = inside[:, None] & within[None, :]
            b = tl.load(starts + (d + lane)[None, :], mask=mask, other=0.0)
            h = tl.load(
                columns + (d + lane)[:, None], mask=within[:, None] & real[None, :], other=0.0
            )
            dots += tl.dot(b, h, input_precision="tf32x3").to(tl.float64)
    return dots
