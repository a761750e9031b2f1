"""The sketch of a matrix: for every row an upper bound of its logit, from a few bytes of it.

docs/certified.md proves the bound. P [M, D] is nearly a rotation's first rows; a row w has
coordinates P w of which the first 4 L are coded in `codes` and the others in `tails`, with scale s
and a bound n of what is left, ||w - P^T P w||, after each stage. A query h has codes z with
g = s_h z near P h. Then, after either stage,

    |w.h - sum of s s_h q.z| <= sum of s K + n rho,      K = kappa ||g|| + Q tau,

the sums over the stages so far. kappa >= e / s and Q >= p / s over all rows, where e is a row's
coding error and p the norm of its coordinates.

Shape letters: V vocabulary, D hidden size, M coordinates, G groups of 16 rows, L quads of first
coordinates, T bytes of a tail: the other coordinates, then s and n as float32.

A sketch's record is that of W, then addresses, sizes, and float64 bits, in the order below.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping

import numpy as np

from logitsieve.kernels.byte_lanes import (
    add_sums,
    join_planes,
    multiply_bytes,
    multiply_row,
    scale_sums,
    total_of_sums,
    zero_sums,
)
from logitsieve.kernels.compile import inline
from logitsieve.kernels.dots import dots_1x4
from logitsieve.kernels.lanes import (
    LANES,
    larger,
    load,
    load_first,
    multiply_add,
    splat32,
    store,
    zeros32,
)
from logitsieve.kernels.planes import encode_planes
from logitsieve.kernels.pointers import (
    as_float32,
    float32_pointer,
    float64_of_bits,
    shift,
    uint8_pointer,
)
from logitsieve.kernels.queries import NORM
from logitsieve.kernels.record import BIAS, DIM, LARGEST_BIAS, LARGEST_NORM, RECORD, ROWS
from logitsieve.types.results import Int64

(
    BASIS, CODES, SCALES, RESTS, TAILS, COORDINATES, QUADS, TAIL,
    EPS, KAPPA, Q, TAIL_KAPPA, TAIL_Q, FROBENIUS, MOST_SCALE, MOST_REST, MOST_TAIL_SCALE,
) = range(RECORD, RECORD + 17)  # fmt: skip

BLOCK = 16  # groups, of whose rows the best of each lane are noted together

# What a query is to the sketch: float64 values, its factors.
SCALE, SUM, ERROR, REST, TAIL_SCALE, TAIL_SUM, TAIL_ERROR, TAIL_REST, MARGIN = range(9)
FACTORS = 9

Sketch = namedtuple("Sketch", "rows quads tail bias codes scales rests tails")


def sketch_record(softmax_record: Int64, arrays: Mapping[str, np.ndarray]) -> Int64:
    """The record of a sketch whose `arrays` are those of the part, which the caller keeps alive."""
    basis, codes, tails = arrays["basis"], arrays["codes"], arrays["tails"]
    names = ("basis", "codes", "scales", "rests", "tails")
    addresses = [arrays[name].ctypes.data for name in names]
    sizes = [basis.shape[0], codes.shape[1], tails.shape[1]]
    frobenius = float(np.linalg.norm(basis.astype(np.float64))) * (1 + 1e-9)
    tail_scales = tails[:, -8:].copy().view(np.float32)[:, 0]
    most = [arrays["scales"].max(), arrays["rests"].max(), tail_scales.max()]
    reals = np.array([*arrays["limits"], frobenius, *most], np.float64)
    return np.concatenate([softmax_record, np.array(addresses + sizes), reals.view(np.int64)])


@inline
def sketch_at(record):
    """The sketch that a record describes."""
    return Sketch(
        record[ROWS],
        record[QUADS],
        record[TAIL],
        float32_pointer(record[BIAS]),
        uint8_pointer(record[CODES]),
        float32_pointer(record[SCALES]),
        float32_pointer(record[RESTS]),
        uint8_pointer(record[TAILS]),
    )


@inline
def plane_bytes(record):
    """Bytes of the codes of one query: two planes of the first coordinates, two of the tail."""
    return 2 * (4 * record[QUADS] + record[TAIL])


@inline
def describe(record, h, state, rotated, planes, factors):
    """Rotate one row of hidden, write its codes and its factors.

    `rotated` has room for 4 L + T + 4 float32 values.
    """
    norm, dim, first, tail = state[NORM], record[DIM], 4 * record[QUADS], record[TAIL]
    _rotate(record, h, rotated)
    high, low = planes, shift(planes, first)
    tail_high, tail_low = shift(planes, 2 * first), shift(planes, 2 * first + tail)
    scale, total, squares, products, errors = encode_planes(rotated, first, high, low)
    tail_scale, tail_total, tail_squares, tail_products, tail_errors = encode_planes(
        shift(rotated, first), tail, tail_high, tail_low
    )
    eps = float64_of_bits(record[EPS])
    # Rotated in float32: each coordinate is a sum of D / 16 terms a lane and of sixteen lanes.
    off = (dim / 16 + 6) * 1.01 * 2.0**-24 * float64_of_bits(record[FROBENIUS]) * norm
    off += dim * 2.0**-140
    length, tail_length = np.sqrt(squares), np.sqrt(tail_squares)
    both = np.sqrt(squares + tail_squares)
    rest = _rest(norm, eps, off, length, products)
    tail_rest = _rest(norm, eps, off, both, products + tail_products)
    around = off + eps * both
    error = float64_of_bits(record[KAPPA]) * length
    error += float64_of_bits(record[Q]) * (np.sqrt(errors) * 1.000001 + around)
    tail_error = float64_of_bits(record[TAIL_KAPPA]) * tail_length
    tail_error += float64_of_bits(record[TAIL_Q]) * (np.sqrt(tail_errors) * 1.000001 + around)
    largest = (float64_of_bits(record[KAPPA]) + float64_of_bits(record[Q])) * length + 2.0 * error
    tail_largest = (float64_of_bits(record[TAIL_KAPPA]) + float64_of_bits(record[TAIL_Q])) * tail_length
    terms = float64_of_bits(record[MOST_SCALE]) * largest
    terms += float64_of_bits(record[MOST_TAIL_SCALE]) * (tail_largest + 2.0 * tail_error)
    terms += 2.0 * float64_of_bits(record[MOST_REST]) * rest + float64_of_bits(record[LARGEST_BIAS])
    exact = (dim + 32) * 2.0**-52 * norm * float64_of_bits(record[LARGEST_NORM])  # dot64's own error
    factors[SCALE], factors[SUM], factors[ERROR], factors[REST] = scale, 128 * total, error, rest
    factors[TAIL_SCALE], factors[TAIL_SUM] = tail_scale, 128 * tail_total
    factors[TAIL_ERROR], factors[TAIL_REST] = tail_error, tail_rest
    factors[MARGIN] = 2.0**-20 * terms + exact + 1e-30


@inline
def _rest(norm, eps, off, length, products):
    """rho: not less than ||h - P^T g||, as ||P^T g||^2 <= (1 + eps) ||g||^2."""
    squares = norm * norm - 2.0 * products + 2.0 * length * off + (1.0 + eps) * length * length
    return np.sqrt(max(0.0, squares)) + 1e-6 * norm


@inline
def _rotate(record, h, rotated):
    """P h in float32, and zeros up to the width of the codes."""
    count, dim, width = record[COORDINATES], record[DIM], 4 * record[QUADS] + record[TAIL]
    basis, last = float32_pointer(record[BASIS]), count - 1
    for row in range(0, count, 4):
        dots = dots_1x4(
            basis, row * dim, min(row + 1, last) * dim, min(row + 2, last) * dim,
            min(row + 3, last) * dim, h, dim,
        )  # fmt: skip
        rotated[row], rotated[row + 1] = dots[0], dots[1]
        rotated[row + 2], rotated[row + 3] = dots[2], dots[3]
    for row in range(count, width):
        rotated[row] = np.float32(0)


@inline
def bound_groups(sketch, planes, factors, first, last, uppers, maxima):
    """uppers of the rows of groups first .. last-1, and maxima [16] of estimates a block.

    `first` begins a block. Rows beyond V get estimates all the same.
    """
    for group in range(first, last, BLOCK):
        best = splat32(np.float32(-np.inf))
        for here in range(group, min(group + BLOCK, last)):
            best = larger(best, _bound_group(sketch, planes, factors, here, uppers))
        store(maxima, group // BLOCK * LANES, best)


@inline
def _bound_group(sketch, planes, factors, group, uppers):
    """uppers of sixteen rows; returns their estimates."""
    quads, place = sketch.quads, group * LANES
    rows, low = shift(sketch.codes, group * quads * 4 * LANES), shift(planes, 4 * quads)
    a, b, c, e = zero_sums(), zero_sums(), zero_sums(), zero_sums()
    for quad in range(0, quads, 2):
        a = multiply_bytes(a, rows, planes, quad)
        b = multiply_bytes(b, rows, low, quad)
        c = multiply_bytes(c, rows, planes, quad + 1)
        e = multiply_bytes(e, rows, low, quad + 1)
    sums = join_planes(add_sums(a, c), add_sums(b, e))
    dots = scale_sums(sums, int(factors[SUM]), splat32(np.float32(factors[SCALE])))
    scales, rests = load(sketch.scales, place), load(sketch.rests, place)
    if place + LANES <= sketch.rows:
        bias = load(sketch.bias, place)
    else:
        bias = load_first(sketch.bias, place, sketch.rows - place)
    estimates = multiply_add(scales, dots, bias)
    slack = multiply_add(rests, splat32(np.float32(factors[REST])), zeros32())
    slack = multiply_add(scales, splat32(np.float32(factors[ERROR])), slack)
    store(uppers, place, multiply_add(slack, splat32(np.float32(1)), estimates))
    return estimates


@inline
def slack_of(sketch, factors, row):
    """By how much the first stage's bound of a row exceeds its estimate."""
    return sketch.scales[row] * factors[ERROR] + sketch.rests[row] * factors[REST]


@inline
def refine(sketch, planes, factors, row, upper):
    """(estimate, slack) of a row after the second stage, from `upper`, the first stage's bound."""
    tail = sketch.tail
    codes = shift(sketch.tails, row * tail)
    high = shift(planes, 8 * sketch.quads)
    low = shift(high, tail)
    a, b = zero_sums(), zero_sums()
    for piece in range(tail // (4 * LANES)):
        a = multiply_row(a, codes, high, piece)
        b = multiply_row(b, codes, low, piece)
    total = total_of_sums(join_planes(a, b)) - int(factors[TAIL_SUM])
    own = as_float32(shift(codes, tail - 8))
    estimate = upper - slack_of(sketch, factors, row) + own[0] * factors[TAIL_SCALE] * total
    slack = sketch.scales[row] * factors[ERROR] + own[0] * factors[TAIL_ERROR]
    return estimate, slack + own[1] * factors[TAIL_REST]
