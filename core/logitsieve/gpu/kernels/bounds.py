"""An upper bound of every logit from the codes of the sketch; the largest of each group is kept.

Products of codes are summed in whole numbers, on the tensor cores where there are many rows, so
these sums do not depend on the batch. Every later step is one that rounds in one way only: a bound
is the same number whichever kernel asks for it.

Shape letters: B rows of hidden, V vocabulary, G groups of GROUP ids, T bytes of a row of codes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.encode_query import ERROR, FACTORS, REST, SCALE
from logitsieve.gpu.kernels.scan import store_maxima
from logitsieve.gpu.kernels.status import WANTED, any_of

STEP = tl.constexpr(64)  # codes at once: T is a multiple


@triton.jit
def bounds_kernel(
    codes, scales, rests, bias, planes, factors, status, maxima, B, V, G,
    WIDTH: tl.constexpr, GROUP: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """maxima [B, G] of upper bounds; programs are (tiles of BLOCK_V ids, BLOCK_B rows).

    Blocks without a row that is WANTED are left out.
    """
    tile, block = tl.program_id(0), tl.program_id(1)
    ids, rows = tile * BLOCK_V + tl.arange(0, BLOCK_V), block * BLOCK_B + tl.arange(0, BLOCK_B)
    if any_of(status, rows, B, WANTED):
        _, uppers = tile_bounds(codes, scales, rests, bias, planes, factors, ids, rows, B, V, WIDTH)
        store_maxima(maxima, uppers, tile, rows, rows < B, G, GROUP)


@triton.jit
def tile_bounds(
    codes, scales, rests, bias, planes, factors, ids, rows, B, V, WIDTH: tl.constexpr
):  # fmt: skip
    """float32 (estimates, uppers) [ids, rows], -inf beyond V: no logit exceeds upper + MARGIN."""
    inside, real, own = ids < V, rows < B, factors + rows.to(tl.int64) * FACTORS
    sums = _code_sums(codes, planes, ids, rows, B, V, WIDTH).to(tl.float32)
    scale = tl.load(own + SCALE, mask=real, other=0.0).to(tl.float32)[None, :]
    error = tl.load(own + ERROR, mask=real, other=0.0).to(tl.float32)[None, :]
    rest = tl.load(own + REST, mask=real, other=0.0).to(tl.float32)[None, :]
    s = tl.load(scales + ids, mask=inside, other=0.0)[:, None]
    n = tl.load(rests + ids, mask=inside, other=0.0)[:, None]
    b = tl.load(bias + ids, mask=inside, other=float("-inf"))[:, None]
    estimates = tl.fma(sums * scale, s, b)
    return estimates, tl.fma(s, error, tl.fma(n, rest, estimates))


@triton.jit
def _code_sums(codes, planes, ids, rows, B, V, WIDTH: tl.constexpr):
    """int32 dots [ids, rows] of eight-bit and fifteen-bit codes. One row is summed without dots."""
    lane = tl.arange(0, STEP)
    starts, mask = codes + ids.to(tl.int64)[:, None] * WIDTH, (ids < V)[:, None]
    if rows.shape[0] == 1:
        row = planes + tl.sum(rows, 0).to(tl.int64) * 2 * WIDTH
        sums = tl.zeros([ids.shape[0], STEP], tl.int32)
        for t in tl.range(0, WIDTH, STEP, loop_unroll_factor=4):
            q = tl.load(starts + (t + lane)[None, :], mask=mask, other=0).to(tl.int32)
            upper = tl.load(row + t + lane).to(tl.int32)
            r = 128 * upper + tl.load(row + WIDTH + t + lane).to(tl.int32)
            sums += q * r[None, :]
        dots = tl.sum(sums, 1)[:, None]
    else:
        columns, real = planes + rows.to(tl.int64)[None, :] * 2 * WIDTH, (rows < B)[None, :]
        uppers = tl.zeros([ids.shape[0], rows.shape[0]], tl.int32)
        lowers = tl.zeros([ids.shape[0], rows.shape[0]], tl.int32)
        for t in range(0, WIDTH, STEP):
            q = tl.load(starts + (t + lane)[None, :], mask=mask, other=0)
            upper = tl.load(columns + (t + lane)[:, None], mask=real, other=0)
            lower = tl.load(columns + WIDTH + (t + lane)[:, None], mask=real, other=0)
            uppers = tl.dot(q, upper, uppers)
            lowers = tl.dot(q, lower, lowers)
        dots = 128 * uppers + lowers
    return dots
