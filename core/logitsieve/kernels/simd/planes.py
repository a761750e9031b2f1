"""A query's codes r of fifteen bits, |r| <= 16256, as the two planes of `byte_lanes.FORM`.

In signed bytes r = 128 high + low. With so many bits a query's rounding is negligible.
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
NO_LARGER = 1.0 - 2.0**-20  # over the scale: no code is above the largest (proofs/sketch.py)
SMALLEST, LARGEST = 1e-30, 1e30  # magnitudes that have a scale


@inline
def plane_scale(a, count):
    """Return the scale of a[:count], float32 in whole lanes; 0 if too small or too large."""
    most = zeros32()
    for d in range(0, count, LANES):
        most = larger(most, magnitude(load(a, d)))
    largest = largest_lane(most)
    return largest / np.float32(LARGEST_CODE) if SMALLEST < largest < LARGEST else np.float32(0)


@inline
def encode_planes(a, scale, first, last, high, low):
    """Write codes r of a[first:last], in whole lanes: g = scale * r approximates a.

    Returns (sum of r, ||g||^2, ||a - g||^2).
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
