"""The sketch of a matrix: an upper bound of every row's logit, from a few bytes of the row.

docs/certified.md proves the bound. A context h has coordinates c = L U h, with U [P, D] and L [P,
P] lower triangular; a row w has w' with w.h = w'.c, up to the part outside the span of U. The first
F are coded in `coarse`, the first M in `fine`: codes q, a scale s, and the norm n of the rest. A
query has codes r, with g = s_h r near the first coordinates of c, and the norm rho of the rest. For
either coding,

    |w.h - s s_h q.r| <= s K + n rho,      K = kappa ||g|| + Q ||c - g||.

Over all rows, kappa >= e / s and Q >= p / s, with e a row's coding error and p the norm of its
coded coordinates. The rows of U, each coordinate over its `stretch`, are orthonormal up to `SKEW`.

Coarse codes are ordered by how often a row is among the best, so the first rows give a threshold.

Shape letters: V vocabulary, D hidden size, P coordinates, M of them in `fine` and F in `coarse`, G
groups of 16 rows, S bytes of a group: F/4 times four coordinates of each row, then 16 s, n and
biases as float32; T bytes of a row in `fine`: its coordinates, then s and n. With levels there is
only U, any square matrix, with the inverse giving w'; the numbers are those of levels.py.

A sketch's descriptor is W's, then addresses, sizes, and float64 bits, in the order below.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.byte_lanes import OFFSET
from logitsieve.kernels.simd.dots import dots_1x4, four_from, padded
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    load_first,
    multiply_add,
    pair_sum,
    widen,
    zeros64,
)
from logitsieve.kernels.simd.planes import encode_planes, plane_scale
from logitsieve.kernels.simd.pointers import (
    as_uint8,
    float32_pointer,
    float64_of_bits,
    int32_pointer,
    shift,
    uint8_pointer,
)
from logitsieve.kernels.simd.shorts import floats_of
from logitsieve.kernels.sketch.levels import (
    APART,
    COARSE_NUMBERS,
    FIRST_NORM,
    FIRST_SCALE,
    HEAD_SCALE,
    LAST_NORM,
    LAST_SCALE,
    LEVEL_NUMBERS,
    MIDDLE_NORM,
    MIDDLE_SCALE,
    STEP,
    encode_tail,
    reach_of,
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

(
    DIRECTIONS, STRETCH, TRIANGLE, COARSE, FINE, ORDER, SPAN, COARSE_WIDTH, FINE_WIDTH,
    KAPPA, Q, FINE_KAPPA, FINE_Q, LEFT, SIZE, SKEW, GAIN, SPREAD, MOST_SCALE, MOST_REST,
    MIDDLE, STARTS, TAIL, TAIL_WIDTH, MOST_TAIL, CHANCE,
    ERRORS, LENGTHS, RESTS, FINE_ERRORS, FINE_LENGTHS, FINE_RESTS,
) = range(MATRIX_FIELDS, MATRIX_FIELDS + 32)  # fmt: skip
SKETCH_FIELDS = MATRIX_FIELDS + 32
MIDDLE_Q, LAST_Q = FINE_KAPPA, FINE_Q  # with levels `limits` holds these instead

EXTRA = 8  # bytes of a row in `fine` after its codes: s and n
COARSE_EXTRA = 12  # and in `coarse`: s, n and its bias
LEVEL_EXTRA = 2 * LEVEL_NUMBERS  # with levels, in `middle` and in `fine`
LEVELS_EXTRA = 2 * COARSE_NUMBERS  # with levels, in `coarse`

# Per-query factors (float64). The last four exist with levels only; FINE_SUM and FINE_ERROR are
# then those of the tail.
(
    SCALE, SUM, ERROR, REST, FINE_SUM, FINE_ERROR, FINE_REST, MARGIN, ALL, FINE_ALL,
    TAIL_SCALE, TAIL_ADDED, FIRST_ERROR, MIDDLE_ERROR,
) = range(14)  # fmt: skip
FACTORS = 14
NORMAL = 1e-37  # added to factors, so that rounding to float32 loses at most 2^-24 of them

# Proven to be enough by proofs/certified.py.
ROTATION_STEPS, ROTATION_SPARE = 6, 1.01  # roundings of a product on top of D / 16; their growth
ROTATION_UNDERFLOW = 2.0**-140  # for each of D products
CANCELLED = 2.0**-38  # of two squared norms, for the difference of their float64 sums
NORM_SPARE = 1.000001  # of a norm in float64
BOUND_MARGIN = 2.0**-20  # of the largest magnitude summed in a bound
LEVELS_MARGIN = 2.0**-19  # with levels, which take more sums
LEFT_SPARE = 1.01
SUMMED = 1 + 1e-9  # of norms in float64, summed in any order
EXACT_STEPS, UNIT64 = 32, 2.0**-52  # roundings of `dot64` on top of D
LEAST_MARGIN = 1e-30  # for underflow

# `plane`: bytes of each of a query's two planes of eight-bit codes.
Sketch = namedtuple(
    "Sketch",
    "rows groups coarse_width group_bytes fine_width plane bias coarse middle fine order"
    " tail_width starts biased",
)


class SpanNorms(NamedTuple):
    """Float64 norms of U and L, not below the true ones.

    `directions` are the stored ones, each coordinate over its stretch; with levels L is absent.
    """

    directions: Float64  # [P, D]
    size: float  # their Frobenius norm
    skew: float  # >= ||directions directions^T - I||
    gain: float  # the Frobenius norm of the triangle
    spread: float  # the norm of |triangle| times max(1, the norm of each direction)


def span_of(arrays: Mapping[str, np.ndarray]) -> SpanNorms:
    directions = arrays["directions"].astype(np.float64)
    if "triangle" not in arrays:
        size = float(np.linalg.norm(np.linalg.norm(directions, axis=1))) * SUMMED
        return SpanNorms(directions, size, 0.0, size, size)
    directions /= arrays["stretch"].astype(np.float64)
    triangle, (count, dim) = np.abs(arrays["triangle"].astype(np.float64)), directions.shape
    norms = np.linalg.norm(directions, axis=1)
    size = float(np.linalg.norm(norms)) * SUMMED
    skewed = np.linalg.norm(directions @ directions.T - np.eye(count), axis=1)
    skew = float(np.linalg.norm(skewed)) * SUMMED
    skew += (dim + EXACT_STEPS) * UNIT64 * size * size
    gain = float(np.linalg.norm(np.linalg.norm(triangle, axis=1))) * SUMMED
    spread = float(np.linalg.norm(triangle @ np.maximum(norms, 1))) * SUMMED
    return SpanNorms(directions, size, skew, gain, spread)


class Coded(NamedTuple):
    """Numbers of coordinates."""

    coarse: int  # in eight bits
    tail: int  # T; 0 without levels
    padded: int  # T padded to whole quanta


def widths_of(arrays: Mapping[str, np.ndarray]) -> Coded:
    size = arrays["coarse"].shape[1] // LANES
    if "middle" not in arrays:
        return Coded(size - COARSE_EXTRA, 0, 0)
    padded = 4 * (arrays["fine"].shape[1] - LEVEL_EXTRA)
    coarse = size - LEVELS_EXTRA - padded // 8
    return Coded(coarse, len(arrays["directions"]) - coarse, padded)


def numbers_of(arrays: Mapping[str, np.ndarray]) -> list[Float32]:
    """Return the NUMBERS of levels in order: each [G, 16], the last level's [V]."""
    starts, step = arrays["starts"][:STEP], arrays["starts"][STEP]
    numbers: list[np.ndarray] = []
    for name, count in (("coarse", COARSE_NUMBERS), ("middle", LEVEL_NUMBERS)):
        codes = arrays[name][:, -2 * LANES * count :].copy().view(np.uint16)
        numbers += list(codes.reshape(-1, count, LANES).swapaxes(0, 1))
    numbers += list(arrays["fine"][:, -LEVEL_EXTRA:].copy().view(np.uint16).T)
    return [floats_of(codes, start, step) for codes, start in zip(numbers, starts, strict=True)]


def sketch_descriptor(
    softmax_descriptor: Int64, arrays: Mapping[str, np.ndarray], chance: float = 0.0
) -> Int64:
    """Return the descriptor of a sketch part's arrays, which the caller keeps alive.

    They include an `order`. With levels, a top k may be wrong with the probability `chance`:
    levels.py.
    """
    coarse, fine, widths, span = (
        arrays["coarse"],
        arrays["fine"],
        widths_of(arrays),
        span_of(arrays),
    )
    fields: dict[int, np.ndarray | float] = {
        DIRECTIONS: arrays["directions"],
        COARSE: coarse,
        FINE: fine,
        ORDER: arrays["order"],
        SPAN: len(span.directions),
        COARSE_WIDTH: widths.coarse,
        FINE_WIDTH: fine.shape[1],
        TAIL: widths.tail,
        TAIL_WIDTH: widths.padded,
        CHANCE: chance,
        SIZE: span.size,
        SKEW: span.skew,
        GAIN: span.gain,
        SPREAD: span.spread,
    }
    if widths.tail:
        most = [float(each.max()) for each in numbers_of(arrays)]
        longest = np.sqrt(widths.tail), arrays["limits"][2], arrays["limits"][3]
        scales = most[FIRST_SCALE], most[MIDDLE_SCALE], most[LAST_SCALE]
        fields |= {
            MIDDLE: arrays["middle"],
            STARTS: arrays["starts"],
            MOST_SCALE: most[HEAD_SCALE],
            MOST_REST: max(most[FIRST_NORM], most[MIDDLE_NORM], most[LAST_NORM]),
            MOST_TAIL: float(max(np.array(scales) * longest)),
        }
    else:
        # The largest scale and norm of `coarse`, and of a row of `fine`.
        extras = coarse[:, -LANES * COARSE_EXTRA :].copy().view(np.float32)
        first = extras.reshape(len(coarse), -1, LANES).max(axis=(0, 2))
        last = fine[:, -EXTRA:].copy().view(np.float32).max(axis=0)
        fields |= dict(
            zip((MOST_SCALE, MOST_REST), map(float, np.maximum(first[:2], last)), strict=True)
        )
        fields |= {STRETCH: arrays["stretch"], TRIANGLE: arrays["triangle"], MOST_TAIL: 0.0}
    limits = zip((KAPPA, Q, FINE_KAPPA, FINE_Q, LEFT), arrays["limits"].tolist(), strict=True)
    norms = zip(range(ERRORS, SKETCH_FIELDS), arrays["norms"].tolist(), strict=True)
    descriptor = np.zeros(SKETCH_FIELDS, np.int64)
    descriptor[:MATRIX_FIELDS] = softmax_descriptor
    return fill_fields(descriptor, fields | dict(limits) | dict(norms))


@inline
def sketch_at(descriptor):
    return Sketch(
        descriptor[ROWS],
        (descriptor[ROWS] + LANES - 1) // LANES,
        descriptor[COARSE_WIDTH],
        group_bytes(descriptor),
        descriptor[FINE_WIDTH],
        plane_bytes(descriptor),
        float32_pointer(descriptor[BIAS]),
        uint8_pointer(descriptor[COARSE]),
        uint8_pointer(descriptor[MIDDLE]),
        uint8_pointer(descriptor[FINE]),
        int32_pointer(descriptor[ORDER]),
        descriptor[TAIL_WIDTH],
        int32_pointer(descriptor[STARTS]),
        float64_of_bits(descriptor[LARGEST_BIAS]) > 0.0,
    )


@inline
def group_bytes(descriptor):
    tail = descriptor[TAIL_WIDTH]
    extra = LEVELS_EXTRA if tail > 0 else COARSE_EXTRA
    return LANES * (descriptor[COARSE_WIDTH] + tail // 8 + extra)


@inline
def plane_bytes(descriptor):
    return descriptor[COARSE_WIDTH] if descriptor[TAIL_WIDTH] > 0 else descriptor[FINE_WIDTH]


@inline
def codes_scratch_size(descriptor):
    return (2 * plane_bytes(descriptor) + 6 * descriptor[TAIL_WIDTH]) // 8


@inline
def rotated_scratch_size(descriptor):
    span, tail = padded(descriptor[SPAN]), descriptor[TAIL_WIDTH]
    width = descriptor[COARSE_WIDTH] + tail if tail > 0 else descriptor[FINE_WIDTH]
    return (span + max(span, width)) // 2 + LANES


@inline
def encode_query(descriptor, h, norm, rotated, planes, factors, rows=0):
    """Write the codes and factors of a row of hidden with that norm; `rotated` is scratch.

    With levels, the bounds of `rows` rows may all fail with the descriptor's chance; none if 0.
    """
    if descriptor[TAIL_WIDTH] > 0:
        _encode_levels(descriptor, h, norm, rotated, planes, factors, rows)
    else:
        _encode_steep(descriptor, h, norm, rotated, planes, factors)


@inline
def _encode_steep(descriptor, h, norm, rotated, planes, factors):
    span, coarse, fine = descriptor[SPAN], descriptor[COARSE_WIDTH], descriptor[FINE_WIDTH]
    products, turned = rotated, shift(rotated, padded(span) + LANES)
    off, outside, reach = _turn(descriptor, h, products, turned)
    coded = min(span, fine - EXTRA)
    far = _squares(turned, coded, span) + outside
    near = _squares(turned, min(coarse, coded), coded)
    for place in range(coded, fine):
        turned[place] = np.float32(0)
    low, scale = shift(planes, fine), plane_scale(turned, fine)
    first = encode_planes(turned, scale, 0, coarse, planes, low)
    others = encode_planes(turned, scale, coarse, fine, planes, low)
    both = (first[0] + others[0], first[1] + others[1], first[2] + others[2])
    rest, fine_rest = np.sqrt(near + far) * NORM_SPARE + off, np.sqrt(far) * NORM_SPARE + off
    error, terms = _error(descriptor, KAPPA, off, first)
    fine_error, fine_terms = _error(descriptor, FINE_KAPPA, off, both)
    factors[SCALE], factors[SUM], factors[FINE_SUM] = scale, OFFSET * first[0], OFFSET * both[0]
    factors[ERROR], factors[REST] = error + NORMAL, rest + NORMAL
    factors[FINE_ERROR], factors[FINE_REST] = fine_error + NORMAL, fine_rest + NORMAL
    factors[ALL] = _error_of_all(descriptor, ERRORS, off, first, rest)
    factors[FINE_ALL] = _error_of_all(descriptor, FINE_ERRORS, off, both, fine_rest)
    # The largest magnitudes summed for a row: float32 rounds each to 2^-24 of itself.
    terms = max(terms, fine_terms) + 2.0 * float64_of_bits(descriptor[MOST_REST]) * rest
    _set_margin(descriptor, norm, reach, BOUND_MARGIN, terms, factors)


@inline
def _encode_levels(descriptor, h, norm, rotated, planes, factors, rows):
    span, coarse, width = descriptor[SPAN], descriptor[COARSE_WIDTH], descriptor[TAIL_WIDTH]
    turned, length = rotated, norm * NORM_SPARE
    _multiply_all(float32_pointer(descriptor[DIRECTIONS]), span, descriptor[DIM], h, turned)
    off = float64_of_bits(descriptor[SPREAD]) * _rounding(descriptor[DIM]) * length
    off += span * descriptor[DIM] * ROTATION_UNDERFLOW
    squares = _squares(turned, coarse, span)
    for place in range(span, coarse + width):
        turned[place] = np.float32(0)
    scale = plane_scale(turned, coarse)
    first = encode_planes(turned, scale, 0, coarse, planes, shift(planes, coarse))
    tail = shift(planes, 2 * coarse)
    tables = as_uint8(shift(tail, 2 * width))
    tail_scale, total, added, coded, errors = encode_tail(
        shift(turned, coarse), width, tail, tables
    )
    error, terms = _error(descriptor, KAPPA, off, first)
    far, away = np.sqrt(squares) * NORM_SPARE + off, np.sqrt(errors) * NORM_SPARE + off
    chance = float64_of_bits(descriptor[CHANCE]) if rows > 0 else 0.0
    least = reach_of(chance, rows, descriptor[TAIL])
    rest = far + far / APART
    middle_q, last_q = (float64_of_bits(descriptor[MIDDLE_Q]), float64_of_bits(descriptor[LAST_Q]))
    factors[SCALE], factors[SUM], factors[FINE_SUM] = scale, OFFSET * first[0], total
    factors[TAIL_SCALE], factors[TAIL_ADDED] = tail_scale, added
    factors[ERROR], factors[REST] = error + NORMAL, least * far + far / APART + NORMAL
    factors[FINE_REST] = factors[REST]
    factors[FIRST_ERROR] = np.sqrt(descriptor[TAIL]) * away + NORMAL
    factors[MIDDLE_ERROR], factors[FINE_ERROR] = middle_q * away + NORMAL, last_q * away + NORMAL
    together = (first[0], first[1], (np.sqrt(first[2]) + away) ** 2)
    factors[ALL] = _error_of_all(descriptor, ERRORS, off, together, rest)
    factors[FINE_ALL] = _error_of_all(descriptor, FINE_ERRORS, off, together, rest)
    terms += float64_of_bits(descriptor[MOST_TAIL]) * (np.sqrt(coded) + 2.0 * away)
    terms += 2.0 * float64_of_bits(descriptor[MOST_REST]) * rest
    _set_margin(descriptor, norm, length, LEVELS_MARGIN, terms, factors)


@inline
def _set_margin(descriptor, norm, reach, share, terms, factors):
    """Write the margin of bounds with terms, without biases, that sum to at most `terms`."""
    terms += float64_of_bits(descriptor[LARGEST_BIAS])
    # The rest of a row within the span of U, and the rounding of dot64.
    exact = LEFT_SPARE * float64_of_bits(descriptor[LEFT]) * reach
    exact += (
        (descriptor[DIM] + EXACT_STEPS) * UNIT64 * norm * float64_of_bits(descriptor[LARGEST_NORM])
    )
    factors[MARGIN] = share * terms + exact + LEAST_MARGIN
    if not terms <= LARGEST_LOGIT:
        _bound_nothing(factors)


@inline
def _turn(descriptor, h, products, turned):
    """Write y = U h and c = L y in float32; values after P numbers are undefined.

    Returns the error of c, an upper bound of the squared norm of h outside the span of U, and ||E
    h|| + ||y||, with E the stretch.
    """
    dim, span = descriptor[DIM], descriptor[SPAN]
    skew, size = float64_of_bits(descriptor[SKEW]), float64_of_bits(descriptor[SIZE])
    directions, triangle = (
        float32_pointer(descriptor[DIRECTIONS]),
        float32_pointer(descriptor[TRIANGLE]),
    )
    _multiply_all(directions, span, dim, h, products)
    for row in range(0, span, 4):
        _multiply_four(triangle, row, span, 1, span, min(row + 4, span), products, turned)
    stretched = _stretched_squares(h, float32_pointer(descriptor[STRETCH]), dim)
    inside = _squares(products, 0, span)
    length, within = np.sqrt(stretched) * NORM_SPARE, np.sqrt(inside) * NORM_SPARE
    rounded = _rounding(dim) * length
    tiny = dim * ROTATION_UNDERFLOW
    more = (
        2.0 * within * (size * rounded + tiny) + (skew + CANCELLED) * inside + CANCELLED * stretched
    )
    off = float64_of_bits(descriptor[SPREAD]) * (rounded + tiny) + span * ROTATION_UNDERFLOW
    off += _rounding(span) * float64_of_bits(descriptor[GAIN]) * within
    return off, stretched - inside + more * NORM_SPARE, length + within


@inline
def _rounding(dim):
    """Return the relative error of float32 dots: D / 16 sums in a lane, then sixteen lanes."""
    return (dim / LANES + ROTATION_STEPS) * ROTATION_SPARE * UNIT32


@inline
def _multiply_all(matrix, rows, dim, vector, products):
    """Multiply a matrix [rows, dim] by a vector, writing up to three values more."""
    step = (rows + 3) // 4
    for row in range(step):
        _multiply_four(matrix, row, rows, step, dim, dim, vector, products)


@inline
def _multiply_four(matrix, row, rows, step, stride, dim, vector, products):
    """Multiply four rows, `step` apart, by a vector; rows from `rows` on are the last."""
    r0, r1, r2, r3 = four_from(row, rows, step)
    dots = dots_1x4(matrix, r0 * stride, r1 * stride, r2 * stride, r3 * stride, vector, dim)
    products[row], products[row + step] = dots[0], dots[1]
    products[row + 2 * step], products[row + 3 * step] = dots[2], dots[3]


@inline
def _bound_nothing(factors):
    """Set factors that make every bound infinite, for queries beyond float32's range."""
    for place in range(FACTORS):
        factors[place] = np.inf
    factors[SCALE], factors[SUM], factors[FINE_SUM] = 0.0, 0.0, 0.0
    factors[TAIL_SCALE], factors[TAIL_ADDED] = 0.0, 0.0


@inline
def _error(descriptor, place, off, codes):
    """Return (K, the largest magnitude scaled by s) with kappa and Q at `place`."""
    _, squares, errors = codes
    kappa, most = float64_of_bits(descriptor[place]), float64_of_bits(descriptor[place + 1])
    length = np.sqrt(squares)
    error = kappa * length + most * (np.sqrt(errors) * NORM_SPARE + off)
    return error, float64_of_bits(descriptor[MOST_SCALE]) * ((kappa + most) * length + 2.0 * error)


@inline
def _error_of_all(descriptor, place, off, codes, rest):
    """Return at least the norm of the errors of all estimates, without the margin."""
    _, squares, errors = codes
    total = float64_of_bits(descriptor[place]) * np.sqrt(squares)
    total += float64_of_bits(descriptor[place + 1]) * (np.sqrt(errors) * NORM_SPARE + off)
    return (total + float64_of_bits(descriptor[place + 2]) * rest) * NORM_SPARE


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
    """Return the sum of squares of values times stretch; these products are exact."""
    total, end = zeros64(), dim // LANES * LANES
    for place in range(0, end, LANES):
        x = multiply_add(widen(load(values, place)), widen(load(stretch, place)), zeros64())
        total = multiply_add(x, x, total)
    left = dim - end
    x, y = widen(load_first(values, end, left)), widen(load_first(stretch, end, left))
    x = multiply_add(x, y, zeros64())
    return pair_sum(multiply_add(x, x, total))
