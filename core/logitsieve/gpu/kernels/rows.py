"""What every kernel here begins with: rows of W widened, exact logits, numbers that sort as floats.

Shape letters: N rows of W, D hidden size. W is float32, float16, or the bits of bfloat16 as int16:
Triton's interpreter cannot count in bfloat16.
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


@triton.jit
def ordered32(values):
    """int32 that compare as these float32 do."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered32(keys):
    """The float32 of such an int32."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def ordered64(values):
    """int64 that compare as these float64 do; both zeros are one."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int64, bitcast=True)
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)


@triton.jit
def above_middle(low, high):
    """The middle of two integers, rounded up, without overflow."""
    return (low | high) - ((low ^ high) >> 1)


@triton.jit
def reached(keys, inside, k, most):
    """The largest integer that at least k of the keys reach, or any that no more than `most` do.

    And how many reach it. Keys are int32 or int64.
    """
    largest: tl.constexpr = 0x7FFFFFFFFFFFFFFF if keys.dtype == tl.int64 else 0x7FFFFFFF
    low = tl.min(tl.where(inside, keys, largest), 0)
    high = tl.max(tl.where(inside, keys, -largest - 1), 0)
    reaching = tl.sum(inside.to(tl.int32), 0)
    while (low < high) & (reaching > most):
        middle = above_middle(low, high)
        count = tl.sum((inside & (keys >= middle)).to(tl.int32), 0)
        low = tl.where(count >= k, middle, low)
        reaching = tl.where(count >= k, count, reaching)
        high = tl.where(count >= k, high, middle - 1)
    return low, reaching
