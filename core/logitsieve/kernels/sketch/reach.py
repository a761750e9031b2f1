"""Whether any row of a sketch may have a logit that is large enough, without W.

Shape letters: B batch rows, D hidden size.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.pointers import (
    as_float32,
    as_int8,
    as_int32,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
)
from logitsieve.kernels.sketch.bounds import (
    AT_MOST,
    FOUR,
    REFINED_ROOM,
    bound_four,
    coarse_factors,
    refine,
    refined_at,
)
from logitsieve.kernels.sketch.sieve import append_passed
from logitsieve.kernels.sketch.sketch import (
    FACTORS,
    MARGIN,
    codes_room,
    encode_query,
    rotated_room,
    sketch_at,
)
from logitsieve.kernels.sketch.thresholds import reached_by
from logitsieve.kernels.topk.descriptor import widen_hidden
from logitsieve.kernels.topk.queries import CHUNK


@kernel("(int64, float32[:,::1], float64[::1], boolean[::1])")
def rows_reach(address, hidden, floors, reached):
    """Fill reached [B]: whether a row may have a logit of at least floors [B] with hidden [B, D].

    `address` is that of the descriptor of a sketch whose `fine` and biases lie in the order of
    `coarse`; of W and `order` nothing is read. Returns -1, or the first row of hidden that is not
    finite or too large.
    """
    descriptor = int64_pointer(address)
    dim, sketch, bad = hidden.shape[1], sketch_at(descriptor), -1
    room = padded(dim) + codes_room(descriptor) + FACTORS + rotated_room(descriptor)
    scratch = np.empty(room + REFINED_ROOM + AT_MOST, np.float64)
    planes = as_int8(shift(pointer(scratch), padded(dim)))
    factors = shift(pointer(scratch), padded(dim) + codes_room(descriptor))
    rotated = as_float32(shift(factors, FACTORS))
    refined = refined_at(shift(pointer(scratch), room))
    passed = as_int32(shift(pointer(scratch), room + REFINED_ROOM))
    for row in range(hidden.shape[0]):
        h = row_of(pointer(hidden), row, dim)
        norm = widen_hidden(descriptor, h, pointer(scratch))
        if norm < 0:
            bad = row
            break
        encode_query(descriptor, h, norm, rotated, planes, factors)
        threshold = reached_by(floors[row], factors[MARGIN])
        reached[row] = _any_reaches(sketch, planes, factors, threshold, passed, refined)
    keep_alive(scratch)
    return bad


@inline
def _any_reaches(sketch, planes, factors, threshold, passed, refined):
    """Whether a row's bound by its coarse codes, and then by its fine ones, is not below."""
    query, count, found = coarse_factors(factors), 0, False
    for group in range(0, sketch.groups, FOUR):
        a, b, c, e = bound_four(sketch, planes, query, group, sketch.groups)
        count = append_passed(sketch, passed, count, a[1], threshold, group, sketch.groups)
        count = append_passed(sketch, passed, count, b[1], threshold, group + 1, sketch.groups)
        count = append_passed(sketch, passed, count, c[1], threshold, group + 2, sketch.groups)
        count = append_passed(sketch, passed, count, e[1], threshold, group + 3, sketch.groups)
        if count >= CHUNK or group + FOUR >= sketch.groups:
            refine(sketch, planes, factors, passed, count, refined)
            for i in range(count):
                found = found or not refined.uppers[i] < threshold
            count = 0
        if found:
            break
    return found
