"""Codes and factors of a query for a sketch: sketch.py and levels.py have the bounds."""

from collections import namedtuple
from math import log, pi, sqrt

import numpy as np

from logitsieve.kernels.compile import inline
from logitsieve.kernels.rows.stored_types import float16_pointer
from logitsieve.kernels.simd.byte_lanes import OFFSET
from logitsieve.kernels.simd.dots import dots_1x4, four_from, padded
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    load_first,
    magnitude,
    multiply_add,
    pair_sum,
    rounded,
    splat32,
    store,
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.planes import LARGEST, SMALLEST, add_codes, encode_planes, plane_scale
from logitsieve.kernels.simd.pointers import as_float32, as_int8, as_uint8, float32_pointer, shift
from logitsieve.kernels.simd.tables import CHUNK_BYTES, LARGEST_SUM, TABLE_BYTES
from logitsieve.kernels.sketch import sketch
from logitsieve.kernels.sketch.levels import APART, FOUR, LEVELS
from logitsieve.kernels.topk.descriptor import (
    DIM,
    LARGEST_BIAS,
    LARGEST_LOGIT,
    LARGEST_NORM,
    UNIT32,
    number_at,
)
from logitsieve.kernels.topk.queries import CHUNK

# Float64 factors. The last five exist with levels only; FINE_ERROR is then the last level's.
(
    SCALE, SUM, ERROR, REST, FINE_SUM, FINE_ERROR, FINE_REST, MARGIN, ALL, FINE_ALL,
    TAIL_SCALE, TAIL_TOTAL, TAIL_REST, FIRST_ERROR, MIDDLE_ERROR,
) = range(15)  # fmt: skip
FACTORS = 15
NORMAL = 1e-37  # added to factors, so that rounding to float32 loses at most 2^-24 of them

# Proven to be enough by proofs/certified.py.
ROTATION_STEPS, ROTATION_SPARE = 6, 1.01  # roundings on top of D / 16; their growth
ROTATION_UNDERFLOW = 2.0**-140  # for each of D products
CANCELLED = 2.0**-38  # of two squared norms, for the difference of their float64 sums
NORM_SPARE = 1.000001  # of a norm in float64
BOUND_MARGIN = 2.0**-20  # of the largest magnitude summed in a bound
LEVELS_MARGIN = 2.0**-19  # with levels, which take more sums
LEFT_SPARE = 1.01
LEAST_MARGIN = 1e-30  # for underflow

LARGEST_FOUR = LARGEST_SUM - 2.0  # of the magnitudes of four codes before rounding
AT_MOST = CHUNK + (FOUR + 1) * LANES

# A query's int8 codes and float64 factors; float32 scratch to rotate it and [AT_MOST] of `refine`.
Coded = namedtuple("Coded", "planes factors rotated estimates uppers rests biases end")
# The factors of bounds: integers to subtract from sums, then float32 in every lane.
CoarseFactors = namedtuple("CoarseFactors", "sum scale error rest levels")
LevelFactors = namedtuple(
    "LevelFactors", "total scale length rest first_error middle_error last_error"
)


@inline
def coded_at(descriptor, start):
    span, tail = padded(descriptor[sketch.SPAN]), descriptor[sketch.TAIL_WIDTH]
    width = descriptor[sketch.COARSE_WIDTH] + tail if tail > 0 else descriptor[sketch.FINE_WIDTH]
    factors = shift(start, (2 * sketch.plane_bytes(descriptor) + 4 * tail) // 8)
    rotated = shift(factors, FACTORS)
    refined = shift(rotated, (span + max(span, width)) // 2 + LANES)
    estimates = as_float32(refined)
    return Coded(
        as_int8(start), factors, as_float32(rotated), estimates, shift(estimates, AT_MOST),
        shift(estimates, 2 * AT_MOST), shift(estimates, 3 * AT_MOST), shift(refined, 2 * AT_MOST),
    )  # fmt: skip


@inline
def encode_query(descriptor, h, norm, coded, rows=0):
    """Write the codes and factors of a row of hidden with that norm.

    With levels, the bounds of `rows` rows may fail with the descriptor's chance; none if 0.
    """
    if descriptor[sketch.TAIL_WIDTH] > 0:
        _encode_levels(descriptor, h, norm, coded, rows)
    else:
        _encode_steep(descriptor, h, norm, coded)


@inline
def coarse_factors(factors):
    return CoarseFactors(
        int(factors[SUM]), splat32(factors[SCALE]), splat32(factors[ERROR]), splat32(factors[REST]),
        _level_factors(factors),
    )  # fmt: skip


@inline
def _level_factors(factors):
    return LevelFactors(
        np.float32(factors[TAIL_TOTAL]), splat32(factors[TAIL_SCALE]), splat32(factors[TAIL_REST]),
        splat32(factors[REST]), splat32(factors[FIRST_ERROR]), splat32(factors[MIDDLE_ERROR]),
        splat32(factors[FINE_ERROR]),
    )  # fmt: skip


@inline
def _encode_steep(descriptor, h, norm, coded):
    planes, factors, products = coded.planes, coded.factors, coded.rotated
    span, coarse = descriptor[sketch.SPAN], descriptor[sketch.COARSE_WIDTH]
    fine = descriptor[sketch.FINE_WIDTH]
    turned = shift(products, padded(span) + LANES)
    off, outside, reach = _turn(descriptor, h, products, turned)
    end = min(span, fine - sketch.EXTRA)
    far = _squares(turned, end, span) + outside
    near = _squares(turned, min(coarse, end), end)
    for place in range(end, fine):
        turned[place] = np.float32(0)
    low, scale = shift(planes, fine), plane_scale(turned, fine)
    first = encode_planes(turned, scale, 0, coarse, planes, low)
    others = encode_planes(turned, scale, coarse, fine, planes, low)
    both = (first[0] + others[0], first[1] + others[1], first[2] + others[2])
    rest, fine_rest = np.sqrt(near + far) * NORM_SPARE + off, np.sqrt(far) * NORM_SPARE + off
    error, terms = _error(descriptor, sketch.KAPPA, off, first)
    fine_error, fine_terms = _error(descriptor, sketch.FINE_KAPPA, off, both)
    factors[SCALE], factors[SUM], factors[FINE_SUM] = scale, OFFSET * first[0], OFFSET * both[0]
    factors[ERROR], factors[REST] = error + NORMAL, rest + NORMAL
    factors[FINE_ERROR], factors[FINE_REST] = fine_error + NORMAL, fine_rest + NORMAL
    factors[ALL] = _error_of_all(descriptor, sketch.ERRORS, off, first, rest)
    factors[FINE_ALL] = _error_of_all(descriptor, sketch.FINE_ERRORS, off, both, fine_rest)
    # The largest magnitudes summed for a row: float32 rounds each to 2^-24 of itself.
    terms = max(terms, fine_terms) + 2.0 * number_at(descriptor, sketch.MOST_REST) * rest
    _set_margin(descriptor, norm, reach, BOUND_MARGIN, terms, factors)


@inline
def _encode_levels(descriptor, h, norm, coded, rows):
    planes, factors, turned = coded.planes, coded.factors, coded.rotated
    span, coarse = descriptor[sketch.SPAN], descriptor[sketch.COARSE_WIDTH]
    width, length = descriptor[sketch.TAIL_WIDTH], norm * NORM_SPARE
    _multiply_all(float16_pointer(descriptor[sketch.DIRECTIONS]), span, descriptor[DIM], h, turned)
    off = number_at(descriptor, sketch.SPREAD) * _rounding(descriptor[DIM]) * length
    off += span * descriptor[DIM] * ROTATION_UNDERFLOW
    squares = _squares(turned, coarse, span)
    for place in range(span, coarse + width):
        turned[place] = np.float32(0)
    scale = plane_scale(turned, coarse)
    first = encode_planes(turned, scale, 0, coarse, planes, shift(planes, coarse))
    tables = as_uint8(shift(planes, 2 * coarse))
    tail_scale, total, squared, errors = encode_tail(shift(turned, coarse), width, tables)
    error, terms = _error(descriptor, sketch.KAPPA, off, first)
    far, away = np.sqrt(squares) * NORM_SPARE + off, np.sqrt(errors) * NORM_SPARE + off
    chance = number_at(descriptor, sketch.CHANCE) if rows > 0 else 0.0
    least = reach_of(chance, rows, descriptor[sketch.TAIL])
    rest = far + far / APART
    middle_q, last_q = number_at(descriptor, sketch.MIDDLE_Q), number_at(descriptor, sketch.LAST_Q)
    factors[SCALE], factors[SUM] = scale, OFFSET * first[0]
    factors[TAIL_SCALE], factors[TAIL_TOTAL] = tail_scale, total
    factors[ERROR], factors[REST] = error + NORMAL, least * far + far / APART + NORMAL
    factors[FINE_REST], factors[TAIL_REST] = factors[REST], far + NORMAL
    factors[FIRST_ERROR] = np.sqrt(descriptor[sketch.TAIL]) * away + NORMAL
    factors[MIDDLE_ERROR], factors[FINE_ERROR] = middle_q * away + NORMAL, last_q * away + NORMAL
    terms += number_at(descriptor, sketch.MOST_TAIL) * (np.sqrt(squared) + 2.0 * away)
    terms += 2.0 * number_at(descriptor, sketch.MOST_REST) * rest
    _set_margin(descriptor, norm, length, LEVELS_MARGIN, terms, factors)


@inline
def _set_margin(descriptor, norm, reach, share, terms, factors):
    terms += number_at(descriptor, LARGEST_BIAS)
    # The rest of a row within the span of U, and the rounding of dot64.
    exact = LEFT_SPARE * number_at(descriptor, sketch.LEFT) * reach
    steps = (descriptor[DIM] + sketch.EXACT_STEPS) * sketch.UNIT64
    exact += steps * norm * number_at(descriptor, LARGEST_NORM)
    factors[MARGIN] = share * terms + exact + LEAST_MARGIN
    if not terms <= LARGEST_LOGIT:
        _bound_nothing(factors)


@inline
def _turn(descriptor, h, products, turned):
    """Write y = U h and c = L y in float32; values after P numbers are undefined.

    Returns c's error, a bound of the squared norm of h outside U, and ||stretch h|| + ||y||.
    """
    dim, span = descriptor[DIM], descriptor[sketch.SPAN]
    skew, size = number_at(descriptor, sketch.SKEW), number_at(descriptor, sketch.SIZE)
    triangle = float32_pointer(descriptor[sketch.TRIANGLE])
    _multiply_all(float32_pointer(descriptor[sketch.DIRECTIONS]), span, dim, h, products)
    for row in range(0, span, 4):
        _multiply_four(triangle, row, span, 1, span, min(row + 4, span), products, turned)
    stretched = _stretched_squares(h, float32_pointer(descriptor[sketch.STRETCH]), dim)
    inside = _squares(products, 0, span)
    length, within = np.sqrt(stretched) * NORM_SPARE, np.sqrt(inside) * NORM_SPARE
    rounded = _rounding(dim) * length
    tiny = dim * ROTATION_UNDERFLOW
    more = (
        2.0 * within * (size * rounded + tiny) + (skew + CANCELLED) * inside + CANCELLED * stretched
    )
    off = number_at(descriptor, sketch.SPREAD) * (rounded + tiny) + span * ROTATION_UNDERFLOW
    off += _rounding(span) * number_at(descriptor, sketch.GAIN) * within
    return off, stretched - inside + more * NORM_SPARE, length + within


@inline
def _rounding(dim):
    return (dim / LANES + ROTATION_STEPS) * ROTATION_SPARE * UNIT32


@inline
def _multiply_all(matrix, rows, dim, vector, products):
    step = (rows + 3) // 4
    for row in range(step):
        _multiply_four(matrix, row, rows, step, dim, dim, vector, products)


@inline
def _multiply_four(matrix, row, rows, step, stride, dim, vector, products):
    r0, r1, r2, r3 = four_from(row, rows, step)
    dots = dots_1x4(matrix, r0 * stride, r1 * stride, r2 * stride, r3 * stride, vector, dim)
    products[row], products[row + step] = dots[0], dots[1]
    products[row + 2 * step], products[row + 3 * step] = dots[2], dots[3]


@inline
def _bound_nothing(factors):
    for place in range(FACTORS):
        factors[place] = np.inf
    factors[SCALE], factors[SUM], factors[FINE_SUM] = 0.0, 0.0, 0.0
    factors[TAIL_SCALE], factors[TAIL_TOTAL] = 0.0, 0.0


@inline
def _error(descriptor, place, off, codes):
    _, squares, errors = codes
    kappa, most = number_at(descriptor, place), number_at(descriptor, place + 1)
    length = np.sqrt(squares)
    error = kappa * length + most * (np.sqrt(errors) * NORM_SPARE + off)
    return error, number_at(descriptor, sketch.MOST_SCALE) * ((kappa + most) * length + 2.0 * error)


@inline
def _error_of_all(descriptor, place, off, codes, rest):
    _, squares, errors = codes
    total = number_at(descriptor, place) * np.sqrt(squares)
    total += number_at(descriptor, place + 1) * (np.sqrt(errors) * NORM_SPARE + off)
    return (total + number_at(descriptor, place + 2) * rest) * NORM_SPARE


@inline
def _squares(values, first, last):
    total, end = zeros64(), first + (last - first) // LANES * LANES
    for place in range(first, end, LANES):
        x = widen(load(values, place))
        total = multiply_add(x, x, total)
    x = widen(load_first(values, end, last - end))
    return pair_sum(multiply_add(x, x, total))


@inline
def _stretched_squares(values, stretch, dim):
    total, end = zeros64(), dim // LANES * LANES
    for place in range(0, end, LANES):
        x = widen(load(values, place)) * widen(load(stretch, place))
        total = multiply_add(x, x, total)
    left = dim - end
    x = widen(load_first(values, end, left)) * widen(load_first(stretch, end, left))
    return pair_sum(multiply_add(x, x, total))


@inline
def reach_of(chance, rows, dim):
    """Return a reach that any of `rows` exceeds at any level with at most the probability `chance`.

    A coordinate of a uniform direction in n = dim - 1 dimensions exceeds f with at most (1 -
    f^2)^((n - 1) / 2) / (f sqrt(2 pi (n - 1))).
    """
    if chance <= 0.0 or dim < 4:
        return 1.0
    log_chance, n, low, high = log(chance / (LEVELS * rows)), dim - 1.0, 0.0, 1.0
    for _ in range(40):
        f = (low + high) / 2
        least = (n - 1) / 2 * log(1 - f * f) - log(f * sqrt(2 * pi) * sqrt(n - 1))
        if least > log_chance:
            low = f
        else:
            high = f
    return high


@inline
def encode_tail(turned, width, tables):
    """Replace turned[:width] by its codes g, and write their tables.

    Returns the scale, the sum of magnitudes of codes, ||scale g||^2 and ||y - scale g||^2.
    """
    fours = np.float32(0)
    for d in range(0, width, 4):
        four = abs(turned[d]) + abs(turned[d + 1]) + abs(turned[d + 2]) + abs(turned[d + 3])
        fours = max(fours, four)
    scale = fours / np.float32(LARGEST_FOUR)
    if not SMALLEST < scale < LARGEST:
        scale = np.float32(0)
    factor = np.float32(1) / scale if scale > 0 else np.float32(0)
    step = float(scale)
    total, squares, errors = zeros64(), zeros64(), zeros64()
    for d in range(0, width, LANES):
        x = load(turned, d)
        r = rounded(x * factor) if scale > 0 else zeros32()
        total += widen(magnitude(r))
        _, squares, errors = add_codes(total, squares, errors, x, r, step)
        store(turned, d, r)
    _fill_tables(turned, width, tables)
    return scale, pair_sum(total), pair_sum(squares), pair_sum(errors)


@inline
def _fill_tables(codes, width, tables):
    for four in range(width // 4):
        chunk, within = four // 8, four % 8
        table = shift(tables, TABLE_BYTES * chunk + CHUNK_BYTES * (within % 2) + 8 * (within & 6))
        begin = 0
        for bit in range(4):
            begin -= min(int(codes[4 * four + bit]), 0)
        table[0] = begin
        for bit in range(4):
            code, size = int(codes[4 * four + bit]), 1 << bit
            for n in range(size):
                table[size + n] = int(table[n]) + code
