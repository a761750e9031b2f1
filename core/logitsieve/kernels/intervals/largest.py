"""A bound of the largest logit of all rows of a sketch, by their coarse codes alone.

Shape letters: B batch rows, D hidden size.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.intervals.intervals import BOUND_SPARE, MARGIN_SPARE
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.lanes import larger, largest_lane, splat32
from logitsieve.kernels.simd.pointers import (
    as_float32,
    as_int8,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
)
from logitsieve.kernels.sketch.bounds import FOUR, bound_four, coarse_factors
from logitsieve.kernels.sketch.sketch import (
    FACTORS,
    MARGIN,
    codes_room,
    encode_query,
    rotated_room,
    sketch_at,
)
from logitsieve.kernels.topk.descriptor import widen_hidden


@kernel("(int64, float32[:,::1], float64[::1])")
def largest_bounds(address, hidden, bounds):
    """Fill bounds [B], which no logit of rows of hidden [B, D] exceeds.

    `address` is that of the sketch's descriptor, of which neither W nor `fine` and `order` are
    read. Returns -1, or the first row that is not finite or too large.
    """
    descriptor = int64_pointer(address)
    dim, sketch, bad = hidden.shape[1], sketch_at(descriptor), -1
    room = padded(dim) + codes_room(descriptor) + FACTORS + rotated_room(descriptor)
    scratch = np.empty(room, np.float64)
    codes = shift(pointer(scratch), padded(dim))
    planes, factors = as_int8(codes), shift(codes, codes_room(descriptor))
    rotated = as_float32(shift(factors, FACTORS))
    for row in range(hidden.shape[0]):
        h = row_of(pointer(hidden), row, dim)
        norm = widen_hidden(descriptor, h, pointer(scratch))
        if norm < 0:
            bad = row
            break
        encode_query(descriptor, h, norm, rotated, planes, factors)
        query, most = coarse_factors(factors), splat32(np.float32(-np.inf))
        for group in range(0, sketch.groups, FOUR):
            a, b, c, e = bound_four(sketch, planes, query, group, sketch.groups)
            most = larger(larger(most, larger(a[1], b[1])), larger(c[1], e[1]))
        upper = float(largest_lane(most))
        bounds[row] = upper + BOUND_SPARE * abs(upper) + MARGIN_SPARE * factors[MARGIN]
        if bounds[row] != bounds[row]:
            bounds[row] = np.inf
    keep_alive(scratch)
    return bad
