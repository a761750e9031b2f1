"""The sketch of a matrix: for every row an upper bound of its logit, from a few bytes of it.

docs/certified.md proves the bound. P [M, D] is nearly a rotation's first rows; a row w has
coordinates P w of which the first F are coded in `firsts` and the others in `tails`, with scale s
and a bound n of what is left, ||w - P^T P w||, after each stage. A query h has codes z with
g = s_h z near P h. Then, after either stage,

    |w.h - sum of s s_h q.z| <= sum of s K + n rho,      K = kappa ||g|| + Q tau,

the sums over the stages so far. kappa >= e / s and Q >= p / s over all rows, where e is a row's
coding error and p the norm of its coordinates.

Shape letters: V vocabulary, D hidden size, M coordinates, G groups of 16 rows, F first coordinates,
S bytes of a group: F/4 times four coordinates of each row, 16 s and 16 n as float32; T bytes of a
tail: the other coordinates of one row, then its s and n.

A sketch's record is that of W, then addresses, sizes, and float64 bits, in the order below.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping

import numpy as np

from logitsieve.kernels.byte_lanes import (
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
    BASIS, FIRSTS, TAILS, COORDINATES, FIRST, TAIL,
    EPS, KAPPA, Q, TAIL_KAPPA, TAIL_Q, FROBENIUS, MOST_SCALE, MOST_REST, MOST_TAIL_SCALE,
) = range(RECORD, RECORD + 15)  # fmt: skip

EXTRA = 8  # bytes a row beside its codes: s and n
BLOCK = 16  # groups, of whose rows the best of each lane are noted together
FOUR = 4  # of them at once

NORMAL = 1e-37  # so that what is rounded to float32 loses no more than 2^-24 of itself

# What a query is to the sketch: float64 values, its factors.
SCALE, SUM, ERROR, REST, TAIL_SCALE, TAIL_SUM, TAIL_ERROR, TAIL_REST, MARGIN = range(9)
FACTORS = 9

Sketch = namedtuple("Sketch", "rows first tail bias firsts tails")


def sketch_record(softmax_record: Int64, arrays: Mapping[str, np.ndarray]) -> Int64:
    """The record of a sketch whose `arrays` are those of the part, which the caller keeps alive."""
    basis, firsts, tails = arrays["basis"], arrays["firsts"], arrays["tails"]
    addresses = [array.ctypes.data for array in (basis, firsts, tails)]
    sizes = [basis.shape[0], firsts.shape[1] // LANES - EXTRA, tails.shape[1]]
    frobenius = float(np.linalg.norm(basis.astype(np.float64))) * (1 + 1e-9)
    # Scales, then rests, of sixteen rows; those of one row.
    extras = firsts[:, -LANES * EXTRA :].copy().view(np.float32).reshape(-1, 2, LANES)
    tail_scales = tails[:, -EXTRA:].copy().view(np.float32)[:, 0]
    most = [*extras.max(axis=(0, 2)), tail_scales.max()]
    reals = np.array([*arrays["limits"], frobenius, *most], np.float64)
    return np.concatenate([softmax_record, np.array(addresses + sizes), reals.view(np.int64)])


@inline
def sketch_at(record):
    """The sketch that a record describes."""
    return Sketch(
        record[ROWS],
        record[FIRST],
        record[TAIL],
        float32_pointer(record[BIAS]),
        uint8_pointer(record[FIRSTS]),
        uint8_pointer(record[TAILS]),
    )


@inline
def plane_bytes(record):
    """Bytes of the codes of one query: two planes of the first coordinates, two of the tail."""
    return 2 * (record[FIRST] + record[TAIL])


@inline
def describe(record, h, state, rotated, planes, factors):
    """Rotate one row of hidden, write its codes and its factors.

    `rotated` has room for F + T + 4 float32 values.
    """
    norm, dim, first, tail = state[NORM], record[DIM], record[FIRST], record[TAIL]
    _rotate(record, h, rotated)
    scale, total, squares, products, errors = encode_planes(
        rotated, first, planes, shift(planes, first)
    )
    tail_planes = shift(planes, 2 * first)
    tail_scale, tail_total, tail_squares, tail_products, tail_errors = encode_planes(
        shift(rotated, first), tail, tail_planes, shift(tail_planes, tail)
    )
    # Rotated in float32: each coordinate is a sum of D / 16 terms a lane and of sixteen lanes.
    off = (dim / 16 + 6) * 1.01 * 2.0**-24 * float64_of_bits(record[FROBENIUS]) * norm
    off += dim * 2.0**-140
    eps, both = float64_of_bits(record[EPS]), np.sqrt(squares + tail_squares)
    around, length, tail_length = off + eps * both, np.sqrt(squares), np.sqrt(tail_squares)
    tau, tail_tau = np.sqrt(errors) * 1.000001 + around, np.sqrt(tail_errors) * 1.000001 + around
    kappa, tail_kappa = float64_of_bits(record[KAPPA]), float64_of_bits(record[TAIL_KAPPA])
    most, tail_most = float64_of_bits(record[Q]), float64_of_bits(record[TAIL_Q])
    error, tail_error = kappa * length + most * tau, tail_kappa * tail_length + tail_most * tail_tau
    rest = _rest(norm, eps, off, length, products)
    factors[SCALE], factors[SUM] = scale, 128 * total
    factors[ERROR], factors[REST] = error + NORMAL, rest + NORMAL
    factors[TAIL_SCALE], factors[TAIL_SUM] = tail_scale, 128 * tail_total
    factors[TAIL_ERROR] = tail_error
    factors[TAIL_REST] = _rest(norm, eps, off, both, products + tail_products)
    # The largest magnitudes that are added up for a row: float32 rounds each to 2^-24 of itself.
    terms = float64_of_bits(record[MOST_SCALE]) * ((kappa + most) * length + 2.0 * error)
    tail_terms = (tail_kappa + tail_most) * tail_length + 2.0 * tail_error
    terms += float64_of_bits(record[MOST_TAIL_SCALE]) * tail_terms
    terms += 2.0 * float64_of_bits(record[MOST_REST]) * rest
    terms += float64_of_bits(record[LARGEST_BIAS])
    exact = (dim + 32) * 2.0**-52 * norm * float64_of_bits(record[LARGEST_NORM])  # of dot64 itself
    factors[MARGIN] = 2.0**-20 * terms + exact + 1e-30


@inline
def _rest(norm, eps, off, length, products):
    """rho: not less than ||h - P^T g||, as ||P^T g||^2 <= (1 + eps) ||g||^2."""
    squares = norm * norm - 2.0 * products + 2.0 * length * off + (1.0 + eps) * length * length
    return np.sqrt(max(0.0, squares)) + 1e-6 * norm


@inline
def _rotate(record, h, rotated):
    """P h in float32, and zeros up to the width of the codes."""
    count, dim, width = record[COORDINATES], record[DIM], record[FIRST] + record[TAIL]
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
    for block in range(first, last, BLOCK):
        best = splat32(np.float32(-np.inf))
        for group in range(block, min(block + BLOCK, last), FOUR):
            best = larger(best, _bound_four(sketch, planes, factors, group, last - 1, uppers))
        store(maxima, block // BLOCK * LANES, best)


@inline
def _bound_four(sketch, planes, factors, group, end, uppers):
    """uppers of four groups, which share what is loaded of the query; returns their best estimates.

    Groups beyond `end` are that one again.
    """
    size, low = _group_bytes(sketch), shift(planes, sketch.first)
    second, third, fourth = min(group + 1, end), min(group + 2, end), min(group + 3, end)
    a_rows, b_rows = shift(sketch.firsts, group * size), shift(sketch.firsts, second * size)
    c_rows, e_rows = shift(sketch.firsts, third * size), shift(sketch.firsts, fourth * size)
    a, b, c, e = zero_sums(), zero_sums(), zero_sums(), zero_sums()
    a_low, b_low, c_low, e_low = zero_sums(), zero_sums(), zero_sums(), zero_sums()
    for quad in range(sketch.first // 4):
        a, a_low = _multiply_planes(a, a_low, a_rows, planes, low, quad)
        b, b_low = _multiply_planes(b, b_low, b_rows, planes, low, quad)
        c, c_low = _multiply_planes(c, c_low, c_rows, planes, low, quad)
        e, e_low = _multiply_planes(e, e_low, e_rows, planes, low, quad)
    best = _bound_group(sketch, factors, group, join_planes(a, a_low), uppers)
    best = larger(best, _bound_group(sketch, factors, second, join_planes(b, b_low), uppers))
    best = larger(best, _bound_group(sketch, factors, third, join_planes(c, c_low), uppers))
    return larger(best, _bound_group(sketch, factors, fourth, join_planes(e, e_low), uppers))


@inline
def _group_bytes(sketch):
    """S."""
    return LANES * (sketch.first + EXTRA)


@inline
def _extras(sketch, group):
    """The scales of sixteen rows, then their rests."""
    size = _group_bytes(sketch)
    return as_float32(shift(sketch.firsts, group * size + LANES * sketch.first))


@inline
def _multiply_planes(high_sums, low_sums, rows, high, low, quad):
    return multiply_bytes(high_sums, rows, high, quad), multiply_bytes(low_sums, rows, low, quad)


@inline
def _bound_group(sketch, factors, group, sums, uppers):
    """uppers of sixteen rows; returns their estimates."""
    place = group * LANES
    dots = scale_sums(sums, int(factors[SUM]), splat32(np.float32(factors[SCALE])))
    extras = _extras(sketch, group)
    scales, rests = load(extras, 0), load(extras, LANES)
    if place + LANES <= sketch.rows:
        bias = load(sketch.bias, place)
    else:
        bias = load_first(sketch.bias, place, sketch.rows - place)
    estimates = multiply_add(scales, dots, bias)
    upper = multiply_add(rests, splat32(np.float32(factors[REST])), estimates)
    upper = multiply_add(scales, splat32(np.float32(factors[ERROR])), upper)
    store(uppers, place, upper)
    return estimates


@inline
def slack_of(sketch, factors, row):
    """By how much the first stage's bound of a row exceeds its estimate."""
    extras, lane = _extras(sketch, row // LANES), row % LANES
    return extras[lane] * factors[ERROR] + extras[LANES + lane] * factors[REST]


@inline
def refine(sketch, planes, factors, row, upper):
    """(estimate, slack) of a row after the second stage, from `upper`, the first stage's bound."""
    tail = sketch.tail
    codes = shift(sketch.tails, row * tail)
    high = shift(planes, 2 * sketch.first)
    low = shift(high, tail)
    a, b = zero_sums(), zero_sums()
    for piece in range(tail // (4 * LANES)):
        a = multiply_row(a, codes, high, piece)
        b = multiply_row(b, codes, low, piece)
    total = total_of_sums(join_planes(a, b)) - int(factors[TAIL_SUM])
    own = as_float32(shift(codes, tail - EXTRA))
    extras, lane = _extras(sketch, row // LANES), row % LANES
    error, rest = extras[lane] * factors[ERROR], extras[LANES + lane] * factors[REST]
    estimate = upper - error - rest + own[0] * factors[TAIL_SCALE] * total
    return estimate, error + own[0] * factors[TAIL_ERROR] + own[1] * factors[TAIL_REST]
