"""Codes and factors of a query for a sketch."""

from collections import namedtuple
from math import log, pi, sqrt

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.rows.stored_types import float16_pointer
from logitsieve.kernels.simd.byte_lanes import OFFSET
from logitsieve.kernels.simd.dots import few_dots, four_from, four_of, padded, row_of
from logitsieve.kernels.simd.lanes import (
    LANES,
    larger,
    largest_lane,
    load,
    load_first,
    magnitude,
    multiply_add,
    pair_sum,
    rounded,
    sixteen_floats,
    splat32,
    store,
    widen,
    zeros32,
    zeros64,
)
from logitsieve.kernels.simd.planes import LARGEST, SMALLEST, add_codes, encode_planes, plane_scale
from logitsieve.kernels.simd.pointers import as_float32, as_int8, as_uint8, shift
from logitsieve.kernels.simd.tables import CHUNK_BYTES, LARGEST_SUM, TABLE_BYTES
from logitsieve.kernels.sketch import sketch
from logitsieve.kernels.sketch.levels import APART, LEVEL_COUNT
from logitsieve.kernels.topk.descriptor import (
    DIM,
    LARGEST_BIAS,
    LARGEST_LOGIT,
    LARGEST_NORM,
    UNIT32,
    number_at,
)

(
    SCALE, SUM, ERROR, LENGTH, REST, MARGIN, TAIL_SCALE, TAIL_TOTAL, FIRST_ERROR, MIDDLE_ERROR,
    LAST_ERROR,
) = range(11)  # fmt: skip
FACTORS = 11
NORMAL = 1e-37  # added to factors: rounding to float32 then loses at most 2^-24 of them

# Proven to be enough by proofs/sketch.py.
ROTATION_STEPS, ROTATION_SPARE = 6, 1.01  # roundings on top of D / 16, and their growth
ROTATION_UNDERFLOW = 2.0**-140  # for each product
NORM_SPARE = 1.000001  # covers rounding of a norm
BOUND_MARGIN = 2.0**-19  # rounding of a bound, relative to the largest magnitude summed in it
LEFT_SPARE = 1.01
LEAST_MARGIN = 1e-30  # for underflow

LARGEST_FOUR = LARGEST_SUM - 2.0  # magnitudes of four codes, before rounding
LARGEST_CODE = 127.0  # a signed byte, for batch.py

# A query's int8 codes, tables, float64 factors, and coordinates: 32 or more float32 values.
Coded = namedtuple("Coded", "planes tables factors rotated end")
# `sum` and `total` are subtracted from sums; the others are float32 in every lane.
Factors = namedtuple(
    "Factors", "sum total scale error length tail_scale rest first_error middle_error last_error"
)


@inline
def coded_at(descriptor, start):
    dim, tail = padded(descriptor[DIM]), descriptor[sketch.TAIL_WIDTH]
    coarse = descriptor[sketch.COARSE_WIDTH]
    tables = shift(start, coarse // 4)
    factors = shift(tables, tail // 2)
    rotated = shift(factors, FACTORS)
    end = shift(rotated, max(dim, coarse + tail) // 2 + LANES)
    return Coded(as_int8(start), as_uint8(tables), factors, as_float32(rotated), end)


@inline
def factors_of(factors):
    return Factors(
        int(factors[SUM]), np.float32(factors[TAIL_TOTAL]), splat32(factors[SCALE]),
        splat32(factors[ERROR]), splat32(factors[LENGTH]), splat32(factors[TAIL_SCALE]),
        splat32(factors[REST]), splat32(factors[FIRST_ERROR]), splat32(factors[MIDDLE_ERROR]),
        splat32(factors[LAST_ERROR]),
    )  # fmt: skip


@inline
def encode_query(descriptor, norm, coded, rows=0):
    """Write the codes and factors of a query of this norm, with coordinates from `turn_rows`.

    One of the bounds of `rows` rows fails with at most the descriptor's chance; none if 0.
    """
    planes, factors, turned = coded.planes, coded.factors, coded.rotated
    dim, coarse = descriptor[DIM], descriptor[sketch.COARSE_WIDTH]
    width, length = descriptor[sketch.TAIL_WIDTH], norm * NORM_SPARE
    off = number_at(descriptor, sketch.SIZE) * _rounding(dim) * length
    off += dim * dim * ROTATION_UNDERFLOW
    squares = _squares(turned, min(coarse, dim), dim)
    for place in range(dim, coarse + width):
        turned[place] = np.float32(0)
    scale = plane_scale(turned, coarse)
    first = encode_planes(turned, scale, 0, coarse, planes, shift(planes, coarse))
    tail_scale, total, squared, errors = encode_tail(shift(turned, coarse), width, coded.tables)
    error, terms = _error(descriptor, off, first)
    far, away = np.sqrt(squares) * NORM_SPARE + off, np.sqrt(errors) * NORM_SPARE + off
    chance = number_at(descriptor, sketch.CHANCE) if rows > 0 else 0.0
    least = reach_of(chance, rows, descriptor[sketch.TAIL])
    middle_q, last_q = number_at(descriptor, sketch.MIDDLE_Q), number_at(descriptor, sketch.LAST_Q)
    factors[SCALE], factors[SUM] = scale, OFFSET * first[0]
    factors[TAIL_SCALE], factors[TAIL_TOTAL] = tail_scale, total
    factors[ERROR], factors[LENGTH] = error + NORMAL, far + NORMAL
    factors[REST] = least * far + far / APART + NORMAL
    factors[FIRST_ERROR] = np.sqrt(descriptor[sketch.TAIL]) * away + NORMAL
    factors[MIDDLE_ERROR], factors[LAST_ERROR] = middle_q * away + NORMAL, last_q * away + NORMAL
    # The largest magnitudes summed for a row; float32 rounds each to 2^-24 of itself.
    terms += number_at(descriptor, sketch.MOST_TAIL) * (np.sqrt(squared) + 2.0 * away)
    terms += 2.0 * number_at(descriptor, sketch.MOST_REST) * (far + far / APART)
    terms += number_at(descriptor, LARGEST_BIAS)
    # The residual of a row, and the rounding of dot64.
    exact = LEFT_SPARE * number_at(descriptor, sketch.LEFT) * length
    exact += (dim + sketch.EXACT_STEPS) * sketch.UNIT64 * norm * number_at(descriptor, LARGEST_NORM)
    factors[MARGIN] = BOUND_MARGIN * terms + exact + LEAST_MARGIN
    if not terms <= LARGEST_LOGIT:
        _bound_nothing(factors)


@inline
def _rounding(dim):
    return (dim / LANES + ROTATION_STEPS) * ROTATION_SPARE * UNIT32


@inline_once
def turn_rows(descriptor, hidden, count, start, stride):
    """Write the coordinates of rows of hidden to the scratch of queries, from `start` on."""
    directions, dim = float16_pointer(descriptor[sketch.DIRECTIONS]), descriptor[DIM]
    dots, step = sixteen_floats(), (dim + 3) // 4
    for q in range(0, count, 4):
        q0, q1, q2, q3, few = four_of(q, count)
        for row in range(step):
            r0, r1, r2, r3 = four_from(row, dim, step)
            few_dots(
                directions, r0 * dim, r1 * dim, r2 * dim, r3 * dim, hidden, q0 * dim, q1 * dim,
                q2 * dim, q3 * dim, few, dim, dots,
            )  # fmt: skip
            for j in range(few):
                turned = coded_at(descriptor, row_of(start, q + j, stride)).rotated
                turned[r0], turned[r1] = dots[4 * j], dots[4 * j + 1]
                turned[r2], turned[r3] = dots[4 * j + 2], dots[4 * j + 3]


@inline
def _bound_nothing(factors):
    for place in range(FACTORS):
        factors[place] = np.inf
    factors[SCALE], factors[SUM] = 0.0, 0.0
    factors[TAIL_SCALE], factors[TAIL_TOTAL] = 0.0, 0.0


@inline
def _error(descriptor, off, codes):
    _, squares, errors = codes
    kappa, most = number_at(descriptor, sketch.KAPPA), number_at(descriptor, sketch.Q)
    length = np.sqrt(squares)
    error = kappa * length + most * (np.sqrt(errors) * NORM_SPARE + off)
    return error, number_at(descriptor, sketch.MOST_SCALE) * ((kappa + most) * length + 2.0 * error)


@inline
def _squares(values, first, last):
    total, end = zeros64(), first + (last - first) // LANES * LANES
    for place in range(first, end, LANES):
        x = widen(load(values, place))
        total = multiply_add(x, x, total)
    x = widen(load_first(values, end, last - end))
    return pair_sum(multiply_add(x, x, total))


@inline
def reach_of(chance, rows, dim):
    """Return a reach that `rows` rows exceed at some level with at most the probability `chance`.

    docs/sketch.md, "Its tail".
    """
    if chance <= 0.0 or dim < 4:
        return 1.0
    log_chance, n, low, high = log(chance / (LEVEL_COUNT * rows)), dim - 1.0, 0.0, 1.0
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
    """Replace y = turned[:width] by its codes g, and write their tables.

    Returns the scale, the sum of |g|, ||scale g||^2 and ||y - scale g||^2.
    """
    fours, most = np.float32(0), zeros32()
    for d in range(0, width, 4):
        four = abs(turned[d]) + abs(turned[d + 1]) + abs(turned[d + 2]) + abs(turned[d + 3])
        fours = max(fours, four)
    for d in range(0, width, LANES):
        most = larger(most, magnitude(load(turned, d)))
    scale = max(fours / np.float32(LARGEST_FOUR), largest_lane(most) / np.float32(LARGEST_CODE))
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
