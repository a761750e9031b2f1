"""A row of hidden as the sketch has it: coordinates, codes in two planes of bytes, factors.

The coordinates are c = L y, y = U h. Their error is part of every bound, so no float32 sum is long:
at many rows 32 products are added on the tensor cores, at one row D / 128 of each lane, and these
sums in float64. The codes have fifteen bits. This is `encode_query` of sketch/sketch.py with the
rounding of a GPU; docs/certified.md derives the terms.

Shape letters: B rows of hidden, D hidden size, P coordinates, M of them coded, T bytes of a row of
codes, N rows of a matrix.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.dots import norm_of
from logitsieve.gpu.kernels.status import LARGEST, PASSED_ON, REFUSED, WANTED, admissible, any_of


@triton.jit
def product_kernel(
    matrix, vectors, status, products, B, N, D,
    FALLBACK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """products [B, N] float32 of matrix [N, D] and vectors [B, D].

    Programs are (tiles of BLOCK_N rows of the matrix, BLOCK_B vectors). STEP is matrix.STEP at many
    vectors and matrix.LANES at one. FALLBACK: where rows were PASSED_ON.
    """
    places = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    wanted = True
    if FALLBACK:
        wanted = any_of(status, rows, B, PASSED_ON)
    if wanted:
        dots = _dots(matrix, vectors, places, rows, B, N, D, STEP).to(tl.float32)
        mask = (places < N)[:, None] & (rows < B)[None, :]
        tl.store(products + rows.to(tl.int64)[None, :] * N + places[:, None], dots, mask=mask)


@triton.jit
def _dots(matrix, vectors, places, rows, B, N, D, STEP: tl.constexpr):
    inside, real, lane = places < N, rows < B, tl.arange(0, STEP)
    starts = matrix + places.to(tl.int64)[:, None] * D
    if rows.shape[0] == 1:
        row = vectors + tl.sum(rows, 0).to(tl.int64) * D
        sums = tl.zeros([places.shape[0], STEP], tl.float32)
        for d in tl.range(0, D, STEP, loop_unroll_factor=4):
            within = d + lane < D
            mask = inside[:, None] & within[None, :]
            b = tl.load(starts + (d + lane)[None, :], mask=mask, other=0.0)
            sums += b * tl.load(row + d + lane, mask=within, other=0.0)[None, :]
        dots = tl.sum(sums.to(tl.float64), 1)[:, None]
    else:
        columns = vectors + rows.to(tl.int64)[None, :] * D
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


# Of a row's factors, float64: upper = estimate + s ERROR + n REST, and the MARGIN of a threshold.
SCALE, ERROR, REST, MARGIN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
FACTORS = tl.constexpr(4)

LARGEST_CODE = tl.constexpr(16256.0)  # kernels/simd/planes.py: 128 * 127
LEAST, MOST = tl.constexpr(1e-30), tl.constexpr(1e30)  # between which a scale is a normal number
NORMAL = tl.constexpr(1e-37)  # kernels/sketch/sketch.py: what float32 rounds by 2^-24 of itself
ROUNDED = tl.constexpr(1.000001)
BOUND_MARGIN = tl.constexpr(2.0**-20)  # of the largest magnitude that a bound is summed from
LEAST_MARGIN = tl.constexpr(1e-30)  # for underflow
LEFT_SPARE = tl.constexpr(1.01)
EXACT_STEPS, UNIT64 = tl.constexpr(32), tl.constexpr(2.0**-52)  # roundings of dot64 beside D
UNDERFLOW = tl.constexpr(2.0**-120)  # for each product
CANCELLED = tl.constexpr(2.0**-34)  # of two squared norms, for the difference of their sums
NO_LARGER = tl.constexpr(1.0 - 2.0**-20)  # of 1 / scale: no code is above the largest


@triton.jit
def encode_query_kernel(
    hidden, stretch, products, turned, limits, terms, planes, factors, status, D, P, M,
    WIDTH: tl.constexpr, FALLBACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """planes [B, 2, T] int8, factors [B, FACTORS] and status [B].

    A row is REFUSED if it is not finite or too large, and PASSED_ON where float32 could not hold
    what a bound is summed from. FALLBACK: for rows that were PASSED_ON.
    """
    row, passed = tl.program_id(0).to(tl.int64), True
    if FALLBACK:
        passed = tl.load(status + row) == PASSED_ON
    if passed:
        norm = norm_of(hidden + row * D, D)
        state = tl.full([], REFUSED, tl.int32)
        if admissible(norm, limits):
            state = tl.full([], PASSED_ON, tl.int32)
            # No product overflows, neither with U nor then with L.
            longest = norm * tl.load(terms + 9)
            if tl.maximum(longest, 1.01 * longest * tl.load(terms + 7)) <= LARGEST:
                off, outside, reach = _outside(
                    hidden + row * D, stretch, products + row * P, norm, terms, D, P, BLOCK
                )
                high = planes + row * 2 * WIDTH
                summed = _encode_row(
                    turned + row * P, norm, off, outside, reach, limits, terms,
                    high, high + WIDTH, factors + row * FACTORS, D, P, M, WIDTH, BLOCK,
                )  # fmt: skip
                state = tl.where(summed <= LARGEST, WANTED, PASSED_ON)
        tl.store(status + row, state)


@triton.jit
def _outside(hidden, stretch, products, norm, terms, D, P, BLOCK: tl.constexpr):
    """The error of coordinates, the most of ||h||^2 outside the span of U, ||E h|| + ||y||."""
    size, skew, gain = tl.load(terms + 5), tl.load(terms + 6), tl.load(terms + 7)
    lane = tl.arange(0, BLOCK)
    whole, inside = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    for d in range(0, D, BLOCK):
        h = tl.load(hidden + d + lane, mask=d + lane < D, other=0.0).to(tl.float64)
        h *= tl.load(stretch + d + lane, mask=d + lane < D, other=0.0).to(tl.float64)
        whole += h * h
    for d in range(0, P, BLOCK):
        y = tl.load(products + d + lane, mask=d + lane < P, other=0.0).to(tl.float64)
        inside += y * y
    total, part = tl.sum(whole, 0), tl.sum(inside, 0)
    length, within = tl.sqrt(total) * ROUNDED, tl.sqrt(part) * ROUNDED
    rounded = tl.load(terms + 10) * length
    # What underflows in D products, and in the parts that they are split into.
    tiny = D * UNDERFLOW * (1.0 + tl.load(terms + 9) + norm)
    more = 2.0 * within * (size * rounded + tiny) + (skew + CANCELLED) * part + CANCELLED * total
    off = tl.load(terms + 8) * (rounded + tiny) + tl.load(terms + 11) * gain * within
    off += P * UNDERFLOW * (1.0 + gain + within)
    return off, total - part + more * ROUNDED, length + within


@triton.jit
def _encode_row(
    turned, norm, off, outside, reach, limits, terms, high, low, factors, D, P, M,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a row's codes and factors; the largest of what is summed for a bound."""
    kappa, most, left = tl.load(terms), tl.load(terms + 1), tl.load(terms + 2)
    largest, far = _outline(turned, P, M, BLOCK)
    scale = tl.where((largest > LEAST) & (largest < MOST), largest / LARGEST_CODE, 0.0)
    scale = scale.to(tl.float32).to(tl.float64)
    squares, errors = _encode(turned, scale, high, low, M, WIDTH, BLOCK)
    length, rest = tl.sqrt(squares), tl.sqrt(far + outside) * ROUNDED + off
    error = kappa * length + most * (tl.sqrt(errors) * ROUNDED + off)
    summed = tl.load(terms + 3) * ((kappa + most) * length + 2.0 * error)
    summed += 2.0 * tl.load(terms + 4) * rest + tl.load(limits + 1)
    exact = left * LEFT_SPARE * reach + (D + EXACT_STEPS) * UNIT64 * (norm * tl.load(limits))
    tl.store(factors + SCALE, scale)
    tl.store(factors + ERROR, error + NORMAL)
    tl.store(factors + REST, rest + NORMAL)
    tl.store(factors + MARGIN, summed * BOUND_MARGIN + exact + LEAST_MARGIN)
    return summed


@triton.jit
def _outline(turned, P, M, BLOCK: tl.constexpr):
    """The largest magnitude of the coordinates coded, and the sum of the squares of the others."""
    lane = tl.arange(0, BLOCK)
    largest, squares = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    for d in range(0, P, BLOCK):
        c = tl.load(turned + d + lane, mask=d + lane < P, other=0.0).to(tl.float64)
        largest = tl.maximum(largest, tl.where(d + lane < M, tl.abs(c), 0.0))
        squares += tl.where(d + lane < M, 0.0, c * c)
    return tl.max(largest, 0), tl.sum(squares, 0)


@triton.jit
def _encode(turned, scale, high, low, M, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write codes r = 128 high + low; ||g||^2 and ||a - g||^2 of a and g = scale r."""
    lane = tl.arange(0, BLOCK)
    factor = tl.where(scale > 0.0, NO_LARGER, 0.0) / tl.where(scale > 0.0, scale, 1.0)
    squares, errors = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    for d in range(0, WIDTH, BLOCK):
        a = tl.load(turned + d + lane, mask=d + lane < M, other=0.0).to(tl.float64)
        r = tl.floor(a * factor + 0.5)
        upper = tl.floor(r / 128.0 + 0.5)
        tl.store(high + d + lane, upper.to(tl.int8), mask=d + lane < WIDTH)
        tl.store(low + d + lane, (r - 128.0 * upper).to(tl.int8), mask=d + lane < WIDTH)
        g = scale * r
        squares += g * g
        errors += (a - g) * (a - g)
    return tl.sum(squares, 0), tl.sum(errors, 0)
