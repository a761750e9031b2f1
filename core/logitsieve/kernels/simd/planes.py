"""Fifteen-bit codes of a query, |r| <= 16256, as the two planes of bytes of `byte_lanes.FORM`.

As signed bytes, r = 128 high + low. Such codes cost no memory traffic, and make a query's own
rounding negligible.
"""

import numpy as np

from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.byte_lanes import WORDS, store_bytes, store_words
from logitsieve.kernels.simd.lanes import (
    LANES,
    larger,
    largest_lane,
    load,
    magnitude,
    multiply_add,
    pair_sum,
    rounded,
    widen,
    zeros32,
    zeros64,
)

LARGEST_CODE = 16256.0  # 128 * 127
NO_LARGER = 1.0 - 2.0**-20  # of 1 / scale: no code is above the largest (proofs/sketch.py)
SMALLEST, LARGEST = 1e-30, 1e30  # magnitudes between which a scale is a normal number


@inline
def plane_scale(a, count):
    """The scale of a[:count], float32, whole lanes; 0 if they are too small or too large."""
    most = zeros32()
    for d in range(0, count, LANES):
        most = larger(most, magnitude(load(a, d)))
    largest = largest_lane(most)
    return largest / np.float32(LARGEST_CODE) if SMALLEST < largest < LARGEST else np.float32(0)


@inline
def encode_planes(a, scale, first, last, high, low):
    """Write codes r of a[first:last], whole lanes: g = scale * r approximates a.

    Returns (sum of r, ||g||^2, ||a - g||^2). With a scale of 0, g is 0.
    """
    factor = np.float32(NO_LARGER) / scale if scale > 0 else np.float32(0)
    total, squares, errors, step = zeros64(), zeros64(), zeros64(), float(scale)
    for d in range(first, last, LANES):
        x = load(a, d)
        r = rounded(x * factor) if scale > 0 else zeros32()
        if WORDS:
            store_words(high, low, d, r)
        else:
            upper = rounded(r * (1.0 / 128.0))
            store_bytes(high, d, upper)
            store_bytes(low, d, multiply_add(upper, -128.0, r))
        total, squares, errors = add_codes(total, squares, errors, x, r, step)
    return int(pair_sum(total)), pair_sum(squares), pair_sum(errors)


@inline
def add_codes(total, squares, errors, x, r, step):
    g = widen(r) * step
    error = widen(x) - g
    return total + widen(r), multiply_add(g, g, squares), multiply_add(error, error, errors)
