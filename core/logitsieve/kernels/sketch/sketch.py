"""The sketch of a matrix: for every row an upper bound of its logit, from a few bytes of it.

docs/certified.md proves the bound. A context h has coordinates c = B h, B [D, D], and a row w those
w' for which w.h = w'.c. They are coded twice, the first F in `coarse`, the first M in `fine`:
codes q, a scale s, and the norm n of the coordinates left out. A query has codes r with g = s_h r
near the first coordinates of c, and the norm rho of those left out. For either coding,

    |w.h - s s_h q.r| <= s K + n rho,      K = kappa ||g|| + Q ||c - g||,

where kappa >= e / s and Q >= p / s over all rows, e being a row's coding error and p the norm of
the coordinates that are coded.

Coarse codes lie in an order of their own, rows that are often among the best first: they give a
threshold that few of the others reach.

Shape letters: V vocabulary, D hidden size, M coordinates, F of them in `coarse`, G groups of 16
rows, S bytes of a group: F/4 times four coordinates of each row, then 16 s, n and biases as
float32; T bytes of a row in `fine`: its coordinates, then its s and n.

A sketch's descriptor is that of W, then addresses, sizes, and float64 bits, in the order below.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping

import numpy as np

from logitsieve.api.results import Int64
from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.byte_lanes import (
    AVX_VNNI,
    FORM,
    NEON_DOT,
    OFFSET,
    join_planes,
    multiply_bytes,
    multiply_row,
    scale_sums,
    store_totals,
    zero_sums,
)
from logitsieve.kernels.simd.dots import dots_1x4, four_from, padded
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    load_first,
    multiply_add,
    pair_sum,
    splat32,
    store,
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.planes import encode_planes, plane_scale
from logitsieve.kernels.simd.pointers import (
    as_float32,
    float32_pointer,
    float64_of_bits,
    int32_pointer,
    shift,
    uint8_pointer,
)
from logitsieve.kernels.topk.descriptor import (
    BIAS,
    DIM,
    LARGEST_BIAS,
    LARGEST_LOGIT,
    LARGEST_NORM,
    MATRIX_FIELDS,
    ROWS,
    UNIT32,
    fill_fields,
)
from logitsieve.kernels.topk.queries import CHUNK

(
    BASIS, COARSE, FINE, ORDER, COARSE_WIDTH, FINE_WIDTH,
    KAPPA, Q, FINE_KAPPA, FINE_Q, LEFT, FROBENIUS, MOST_SCALE, MOST_REST,
) = range(MATRIX_FIELDS, MATRIX_FIELDS + 14)  # fmt: skip
SKETCH_FIELDS = MATRIX_FIELDS + 14

EXTRA = 8  # bytes of a row in `fine` beside its codes: s and n
COARSE_EXTRA = 12  # and in `coarse`: its bias too
FOUR = 4  # groups at once
IN_PAIRS = FORM in (AVX_VNNI, NEON_DOT)  # whose sums of four fill all registers

# What a query is to the sketch: float64 values, its factors.
SCALE, SUM, ERROR, REST, FINE_SUM, FINE_ERROR, FINE_REST, MARGIN = range(8)
FACTORS = 8
NORMAL = 1e-37  # so that what is rounded to float32 loses no more than 2^-24 of itself

# What proofs/certified.py proves to be enough.
ROTATION_STEPS, ROTATION_SPARE = 6, 1.01  # roundings of a coordinate beside D / 16; their growth
ROTATION_UNDERFLOW = 2.0**-140  # for each of D products
NORM_SPARE = 1.000001  # of a norm in float64
BOUND_MARGIN = 2.0**-20  # of the largest magnitude that a bound is summed from
LEFT_SPARE = 1.01
EXACT_STEPS, UNIT64 = 32, 2.0**-52  # roundings of `dot64` beside D
LEAST_MARGIN = 1e-30  # for underflow

AT_MOST = CHUNK + (FOUR + 1) * LANES  # rows that are refined at once
REFINED_ROOM = 2 * AT_MOST

CoarseFactors = namedtuple("CoarseFactors", "sum scale error rest")
# float32 [AT_MOST] each; rests and biases are the work of `refine`.
Refined = namedtuple("Refined", "estimates uppers rests biases")
Sketch = namedtuple("Sketch", "rows groups coarse_width fine_width bias coarse fine order")


def sketch_descriptor(softmax_descriptor: Int64, arrays: Mapping[str, np.ndarray]) -> Int64:
    """The descriptor of a sketch whose `arrays` are those of the part, which the caller keeps."""
    basis, coarse, fine = arrays["basis"], arrays["coarse"], arrays["fine"]
    # Scales, then rests, of sixteen rows; those of one row.
    extras = coarse[:, -LANES * COARSE_EXTRA :].copy().view(np.float32).reshape(-1, 3, LANES)
    fine_extras = fine[:, -EXTRA:].copy().view(np.float32)
    most = np.maximum(extras.max(axis=(0, 2))[:2], fine_extras.max(axis=0))
    fields = {
        BASIS: basis,
        COARSE: coarse,
        FINE: fine,
        ORDER: arrays["order"],
        COARSE_WIDTH: coarse.shape[1] // LANES - COARSE_EXTRA,
        FINE_WIDTH: fine.shape[1],
        FROBENIUS: float(np.linalg.norm(basis.astype(np.float64))) * (1 + 1e-9),
        MOST_SCALE: float(most[0]),
        MOST_REST: float(most[1]),
    }
    limits = zip((KAPPA, Q, FINE_KAPPA, FINE_Q, LEFT), arrays["limits"].tolist(), strict=True)
    descriptor = np.zeros(SKETCH_FIELDS, np.int64)
    descriptor[:MATRIX_FIELDS] = softmax_descriptor
    return fill_fields(descriptor, fields | dict(limits))


@inline
def sketch_at(descriptor):
    return Sketch(
        descriptor[ROWS],
        (descriptor[ROWS] + LANES - 1) // LANES,
        descriptor[COARSE_WIDTH],
        descriptor[FINE_WIDTH],
        float32_pointer(descriptor[BIAS]),
        uint8_pointer(descriptor[COARSE]),
        uint8_pointer(descriptor[FINE]),
        int32_pointer(descriptor[ORDER]),
    )


@inline
def codes_room(descriptor):
    """float64 values of scratch for the codes of a query: two planes as wide as `fine`."""
    return descriptor[FINE_WIDTH] // 4


@inline
def rotated_room(descriptor):
    """float64 values of scratch for the coordinates of a query."""
    return (max(padded(descriptor[DIM]), descriptor[FINE_WIDTH]) + LANES) // 2


@inline
def encode_query(descriptor, h, norm, rotated, planes, factors):
    """Rotate a row of hidden of that norm, write its codes and its factors."""
    dim, coarse, fine = descriptor[DIM], descriptor[COARSE_WIDTH], descriptor[FINE_WIDTH]
    _rotate(descriptor, h, rotated)
    # In float32: each coordinate is a sum of D / 16 terms a lane, then of sixteen lanes.
    steps = (dim / LANES + ROTATION_STEPS) * ROTATION_SPARE
    off = steps * UNIT32 * float64_of_bits(descriptor[FROBENIUS]) * norm
    off += dim * ROTATION_UNDERFLOW
    coded = min(dim, fine - EXTRA)
    far = _squares(rotated, coded, dim)
    near = _squares(rotated, min(coarse, coded), coded)
    for place in range(coded, fine):
        rotated[place] = np.float32(0)
    low, scale = shift(planes, fine), plane_scale(rotated, fine)
    first = encode_planes(rotated, scale, 0, coarse, planes, low)
    others = encode_planes(rotated, scale, coarse, fine, planes, low)
    both = (first[0] + others[0], first[1] + others[1], first[2] + others[2])
    rest, fine_rest = np.sqrt(near + far) * NORM_SPARE + off, np.sqrt(far) * NORM_SPARE + off
    error, terms = _error(descriptor, KAPPA, off, first)
    fine_error, fine_terms = _error(descriptor, FINE_KAPPA, off, both)
    factors[SCALE], factors[SUM], factors[FINE_SUM] = scale, OFFSET * first[0], OFFSET * both[0]
    factors[ERROR], factors[REST] = error + NORMAL, rest + NORMAL
    factors[FINE_ERROR], factors[FINE_REST] = fine_error + NORMAL, fine_rest + NORMAL
    # The largest magnitudes that are added up for a row: float32 rounds each to 2^-24 of itself.
    terms = max(terms, fine_terms) + 2.0 * float64_of_bits(descriptor[MOST_REST]) * rest
    terms += float64_of_bits(descriptor[LARGEST_BIAS])
    # What w' c is beside w h, and dot64 beside the real number.
    exact = LEFT_SPARE * float64_of_bits(descriptor[LEFT]) * norm
    exact += (dim + EXACT_STEPS) * UNIT64 * norm * float64_of_bits(descriptor[LARGEST_NORM])
    factors[MARGIN] = BOUND_MARGIN * terms + exact + LEAST_MARGIN
    if not terms <= LARGEST_LOGIT:
        _bound_nothing(factors)


@inline
def _bound_nothing(factors):
    """Factors by which every bound is infinite: where float32 could not hold what is added up."""
    for place in range(FACTORS):
        factors[place] = np.inf
    factors[SCALE], factors[SUM], factors[FINE_SUM] = 0.0, 0.0, 0.0


@inline
def _error(descriptor, place, off, codes):
    """(K, the largest of what is scaled by s) for codes whose kappa and Q are at `place`."""
    _, squares, errors = codes
    kappa, most = float64_of_bits(descriptor[place]), float64_of_bits(descriptor[place + 1])
    length = np.sqrt(squares)
    error = kappa * length + most * (np.sqrt(errors) * NORM_SPARE + off)
    return error, float64_of_bits(descriptor[MOST_SCALE]) * ((kappa + most) * length + 2.0 * error)


@inline
def _squares(values, first, last):
    """The sum of the squares of values[first:last]."""
    total, whole = zeros64(), first + (last - first) // LANES * LANES
    for place in range(first, whole, LANES):
        x = widen(load(values, place))
        total = multiply_add(x, x, total)
    x = widen(load_first(values, whole, last - whole))
    return pair_sum(multiply_add(x, x, total))


@inline
def _rotate(descriptor, h, rotated):
    """B h in float32; what is written after D coordinates means nothing."""
    dim, basis = descriptor[DIM], float32_pointer(descriptor[BASIS])
    for row in range(0, dim, 4):
        a, b, c, e = four_from(row, dim)
        dots = dots_1x4(basis, a * dim, b * dim, c * dim, e * dim, h, dim, True)
        rotated[row], rotated[row + 1] = dots[0], dots[1]
        rotated[row + 2], rotated[row + 3] = dots[2], dots[3]


@inline
def coarse_factors(factors):
    """The factors of coarse bounds in every lane: they would be read anew after each store."""
    return CoarseFactors(
        int(factors[SUM]),
        splat32(np.float32(factors[SCALE])),
        splat32(np.float32(factors[ERROR])),
        splat32(np.float32(factors[REST])),
    )


@inline
def bound_four(sketch, planes, query, group, end):
    """(estimates, bounds) of four groups, which share what is loaded of the query.

    Groups from `end` on are the last before it again. Rows beyond V have bounds of -inf.
    """
    size, low = LANES * (sketch.coarse_width + COARSE_EXTRA), shift(planes, sketch.fine_width)
    group, second, third, fourth = four_from(group, end)
    a_rows, b_rows = shift(sketch.coarse, group * size), shift(sketch.coarse, second * size)
    c_rows, e_rows = shift(sketch.coarse, third * size), shift(sketch.coarse, fourth * size)
    zero = zero_sums(), zero_sums()
    a, b, c, e = zero, zero, zero, zero
    for quad in range(sketch.coarse_width // 4):
        a = multiply_bytes(a, a_rows, planes, low, quad)
        b = multiply_bytes(b, b_rows, planes, low, quad)
        if not IN_PAIRS:
            c = multiply_bytes(c, c_rows, planes, low, quad)
            e = multiply_bytes(e, e_rows, planes, low, quad)
    for quad in range(sketch.coarse_width // 4 if IN_PAIRS else 0):
        c = multiply_bytes(c, c_rows, planes, low, quad)
        e = multiply_bytes(e, e_rows, planes, low, quad)
    codes = LANES * sketch.coarse_width
    return (
        _bound_group(shift(a_rows, codes), query, join_planes(a)),
        _bound_group(shift(b_rows, codes), query, join_planes(b)),
        _bound_group(shift(c_rows, codes), query, join_planes(c)),
        _bound_group(shift(e_rows, codes), query, join_planes(e)),
    )


@inline
def _bound_group(rows, query, sums):
    extras = as_float32(rows)
    scales, rests, bias = load(extras, 0), load(extras, LANES), load(extras, 2 * LANES)
    estimates = multiply_add(scales, scale_sums(sums, query.sum, query.scale), bias)
    upper = multiply_add(rests, query.rest, estimates)
    return estimates, multiply_add(scales, query.error, upper)


@inline
def refined_at(scratch):
    """Room for what `refine` finds, in REFINED_ROOM float64 values of scratch."""
    first = as_float32(scratch)
    return Refined(
        first, shift(first, AT_MOST), shift(first, 2 * AT_MOST), shift(first, 3 * AT_MOST)
    )


@inline
def refine(sketch, planes, factors, ids, count, refined):
    """Estimates and bounds of the logits of the rows ids[:count], by their fine codes."""
    width, low = sketch.fine_width, shift(planes, sketch.fine_width)
    query_sum = int(factors[FINE_SUM])
    pieces = width // (4 * LANES)
    for i in range(0, count, FOUR):
        i_a, i_b, i_c, i_e = four_from(i, count)
        a_row, b_row = shift(sketch.fine, ids[i_a] * width), shift(sketch.fine, ids[i_b] * width)
        c_row, e_row = shift(sketch.fine, ids[i_c] * width), shift(sketch.fine, ids[i_e] * width)
        zero = zero_sums(), zero_sums()
        a, b, c, e = zero, zero, zero, zero
        for piece in range(pieces):
            a = multiply_row(a, a_row, planes, low, piece)
            b = multiply_row(b, b_row, planes, low, piece)
            if not IN_PAIRS:
                c = multiply_row(c, c_row, planes, low, piece)
                e = multiply_row(e, e_row, planes, low, piece)
        for piece in range(pieces if IN_PAIRS else 0):
            c = multiply_row(c, c_row, planes, low, piece)
            e = multiply_row(e, e_row, planes, low, piece)
        store_totals(
            refined.estimates, i,
            join_planes(a), join_planes(b), join_planes(c), join_planes(e), query_sum,
        )  # fmt: skip
    for i in range(count):
        row = np.int64(ids[i])
        extras = as_float32(shift(sketch.fine, (row + 1) * width - EXTRA))
        refined.uppers[i], refined.rests[i] = extras[0], extras[1]
        refined.biases[i] = sketch.bias[row]
    scale, error = splat32(np.float32(factors[SCALE])), splat32(np.float32(factors[FINE_ERROR]))
    rest = splat32(np.float32(factors[FINE_REST]))
    for i in range(0, count, LANES):
        scales = load(refined.uppers, i)
        dots = multiply_add(load(refined.estimates, i), scale, zeros32())
        estimates = multiply_add(scales, dots, load(refined.biases, i))
        upper = multiply_add(load(refined.rests, i), rest, estimates)
        store(refined.estimates, i, estimates)
        store(refined.uppers, i, multiply_add(scales, error, upper))
