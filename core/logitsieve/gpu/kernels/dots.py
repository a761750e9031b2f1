"""Float64 dot products of rows of W, in the order that defines a logit.

Shape letters: N rows of W, D hidden size. W is float32, float16, or the bits of bfloat16 as int16:
Triton's interpreter has no arithmetic in bfloat16.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

LANES = tl.constexpr(16)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def widened(values):
    """float32 of stored weights, exactly."""
    if values.dtype == tl.int16:
        return (values.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return values.to(tl.float32)


@triton.jit
def dot64(weight, ids, inside, hidden, D):
    """[N] float64 logits of the rows ids [N] without bias, in the order that defines them.

    As kernels/simd/dots.py has it: element d in sum d mod 16, then adjacent sums added in pairs.
    Products of two float32 are exact in float64, so fused multiply-add changes nothing. Unrolled:
    several loads are under way at once.
    """
    lane = tl.arange(0, LANES)
    total = tl.zeros([ids.shape[0], LANES], tl.float64)
    starts = weight + ids.to(tl.int64)[:, None] * D
    for d in tl.range(0, D, LANES, loop_unroll_factor=8):
        within = d + lane < D
        mask = inside[:, None] & within[None, :]
        w = widened(tl.load(starts + (d + lane)[None, :], mask=mask, other=0))
        h = tl.load(hidden + d + lane, mask=within, other=0.0)
        total += w.to(tl.float64) * h.to(tl.float64)[None, :]
    return pair_sum(total)


@triton.jit
def pair_sum(total):
    """[N] of [N, 16]: adjacent sums added in pairs."""
    eight, four, two = _halved(total), 0, 0
    four = _halved(eight)
    two = _halved(four)
    a, b = tl.split(two)
    return a + b


@triton.jit
def _halved(total):
    a, b = tl.split(tl.reshape(total, [total.shape[0], total.shape[1] // 2, 2]))
    return a + b


@triton.jit
def norm_of(hidden, D):
    """||h|| in float64: NaN or infinite where h is, and beyond what logits may be if it is huge."""
    lane = tl.arange(0, 256)
    squares = tl.zeros([256], tl.float64)
    for d in range(0, D, 256):
        h = tl.load(hidden + d + lane, mask=d + lane < D, other=0.0).to(tl.float64)
        squares += h * h
    return tl.sqrt(tl.sum(squares, 0))
