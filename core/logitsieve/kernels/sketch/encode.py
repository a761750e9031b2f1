"""Codes of rows for a sketch (docs/sketch.md): F coordinates in eight bits, T others in four.

Errors and norms are computed in float64 from the stored codes.
"""

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.lanes import LANES, load, multiply_add, pair_sum, widen, zeros64
from logitsieve.kernels.simd.pointers import keep_alive, pointer, shift
from logitsieve.kernels.sketch.levels import APART, CODE_BITS, LEVEL_COUNT, LEVELS, TAIL_QUANTUM

MOST = 127
MIDDLE = 1 << CODE_BITS - 1  # a tail's code for the interval that begins at 0
LEVEL_STEPS = tuple(level.step for level in LEVELS)
SHARE = 1e-6  # least scale over a row's norm: far above float64 rounding
LEAST_SCALE = 2e-30  # it and quotients by it are normal float32 numbers
STEP = 0.29  # standard deviations: best for a normal distribution and sixteen codes
ROUNDED = 1 + 1e-6  # times a float64 norm before it is rounded to float32
LEAST_LENGTH = 1e-300
SHORTENED = 1e-7  # relative rounding of errors and coordinates to float32


@inline
def _product(left, right, width):
    total = zeros64()
    for place in range(0, width, LANES):
        total = multiply_add(widen(load(left, place)), widen(load(right, place)), total)
    return pair_sum(total)


@inline
def _take_tail(rows, row, first, x, places, width):
    """Write a tail to x[:width], its codes less MIDDLE to `places`; return its squared length."""
    tail = max(rows.shape[1] - first, 0)
    for j in range(tail):
        x[j] = rows[row, first + j]
    for j in range(tail, width):
        x[j], places[j] = np.float32(0), np.float32(0)
    squares = _product(x, x, width)
    inverse = np.sqrt(tail) / (STEP * max(np.sqrt(squares), LEAST_SCALE))
    for j in range(tail):
        place = min(max(np.floor(np.float64(x[j]) * inverse), -float(MIDDLE)), MIDDLE - 1.0)
        places[j] = np.float32(place)
    return squares


@inline
def _level_of(places, tail, level, q):
    share = np.float32(1 / LEVEL_STEPS[level])
    for j in range(tail):
        q[j] = np.float32(2) * np.floor(places[j] * share) + np.float32(1)


@kernel("(float32[:,::1], int64, float32[:,::1], int64, int64)")
def scales_of_rows(rows, first, scales, start, stop):
    """Fill scales [4, V] of rows start .. stop-1: of their `first` coordinates, of each level."""
    tail = max(rows.shape[1] - first, 0)
    width = (tail + TAIL_QUANTUM - 1) // TAIL_QUANTUM * TAIL_QUANTUM
    scratch = np.zeros(3 * width, np.float32)
    x, places, q = (
        pointer(scratch),
        shift(pointer(scratch), width),
        shift(pointer(scratch), 2 * width),
    )
    for row in range(start, stop):
        squares = _take_tail(rows, row, first, x, places, width)
        for level in range(LEVEL_COUNT):
            _level_of(places, tail, level, q)
            scale = squares / max(_product(q, x, width), LEAST_SCALE)
            scales[1 + level, row] = np.float32(max(scale, LEAST_SCALE))
        most = 0.0
        for j in range(min(first, rows.shape[1])):
            value = np.float64(rows[row, j])
            squares, most = squares + value * value, max(most, abs(value))
        scales[0, row] = np.float32(max(most / MOST, SHARE * np.sqrt(squares), LEAST_SCALE))
    keep_alive(scratch)
    return 0


@kernel(
    "(float32[:,::1], int64, float32[:,::1], uint8[:,::1], uint8[:,::1], uint8[:,::1],"
    " uint8[:,::1], float32[:,::1], float64[::1], int64, int64)"
)
def encode_rows(rows, first, scales, coarse, bits, middle, fine, norms, limits, start, stop):
    """Write the codes of rows start .. stop-1, and norms [4, V] of tails and of levels' errors.

    limits[:4] are raised to kappa, Q, and the norms of the longest codes of two and four bits.
    """
    tail = max(rows.shape[1] - first, 0)
    width = (tail + TAIL_QUANTUM - 1) // TAIL_QUANTUM * TAIL_QUANTUM
    scratch, codes = np.zeros(4 * width, np.float32), np.zeros(width, np.uint8)
    x, places = pointer(scratch), shift(pointer(scratch), width)
    q, e = shift(places, width), shift(places, 2 * width)
    for row in range(start, stop):
        group, lane = row // LANES, row % LANES
        scale, off, length = np.float64(scales[0, row]), 0.0, 0.0
        for j in range(min(first, rows.shape[1])):
            value = np.float64(rows[row, j])
            nearest = min(max(np.rint(value / scale), -MOST), MOST)
            error = value - nearest * scale
            off, length = off + error * error, length + value * value
            coarse[group, 64 * (j // 4) + 4 * lane + j % 4] = np.uint8(np.int64(nearest) + 128)
        limits[0] = max(limits[0], np.sqrt(off) / scale)
        limits[1] = max(limits[1], np.sqrt(length) / scale)
        squares = _take_tail(rows, row, first, x, places, width)
        norms[0, row] = np.float32(np.sqrt(squares) * ROUNDED)
        for level in range(LEVEL_COUNT):
            _level_of(places, tail, level, q)
            scale = np.float64(scales[1 + level, row])
            for j in range(tail):
                e[j] = np.float32(np.float64(x[j]) - scale * np.float64(q[j]))
            norm = np.sqrt(_product(e, e, width))
            along = abs(_product(e, x, width)) / max(np.sqrt(squares), LEAST_LENGTH)
            along += SHORTENED * (norm + np.sqrt(squares))
            norm = max(norm, 2.0 * APART * along)
            norms[1 + level, row] = np.float32(norm * ROUNDED)
            if level > 0:
                limits[1 + level] = max(limits[1 + level], np.sqrt(_product(q, q, width)))
        for j in range(tail):
            codes[j] = np.uint8(np.int64(places[j]) + MIDDLE)
        for byte in range(width // 8):
            one, two, three, four = 0, 0, 0, 0
            for bit in range(8):
                code = np.int64(codes[8 * byte + bit])
                one |= (code >> 3) << bit
                two |= (code >> 2 & 1) << bit
                three |= (code >> 1 & 1) << bit
                four |= (code & 1) << bit
            bits[group, LANES * byte + lane] = np.uint8(one)
            middle[group, LANES * byte + lane] = np.uint8(two)
            fine[group, LANES * byte + lane] = np.uint8(three)
            fine[group, 2 * width + LANES * byte + lane] = np.uint8(four)
    keep_alive(scratch)
    return 0
