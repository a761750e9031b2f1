"""The sketch of a matrix: for every row an upper bound of its logit, from a few bytes of it.

docs/certified.md proves the bound. P [M, D] is nearly a rotation's first rows; a row w has
coordinates P w, coded twice: the first F in `coarse`, all M in `fine`. Each has codes q, a scale s
and a bound n of what it leaves out, ||w - P^T P w||. A query h has codes r with g = s_h r near P h.
Then, with either's coordinates,

    |w.h - s s_h q.r| <= s K + n rho,      K = kappa ||g|| + Q tau,

where kappa >= e / s and Q >= p / s over all rows, e being a row's coding error and p the norm of
its coordinates.

Shape letters: V vocabulary, D hidden size, M coordinates, F of them in `coarse`, G groups of 16
rows, S bytes of a group: F/4 times four coordinates of each row, 16 s and 16 n as float32; T bytes
of a row in `fine`: its coordinates, then its s and n.

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
from logitsieve.kernels.planes import encode_planes, plane_scale
from logitsieve.kernels.pointers import (
    as_float32,
    float32_pointer,
    float64_of_bits,
    shift,
    uint8_pointer,
)
from logitsieve.kernels.record import BIAS, DIM, LARGEST_BIAS, LARGEST_NORM, RECORD, ROWS
from logitsieve.types.results import Int64

(
    BASIS, COARSE, FINE, COORDINATES, COARSE_WIDTH, FINE_WIDTH,
    EPS, KAPPA, Q, FINE_KAPPA, FINE_Q, FROBENIUS, MOST_SCALE, MOST_REST,
) = range(RECORD, RECORD + 14)  # fmt: skip

EXTRA = 8  # bytes a row beside its codes: s and n
BLOCK = 16  # groups, of whose rows the best of each lane are noted together
FOUR = 4  # of them at once

# What a query is to the sketch: float64 values, its factors.
SCALE, SUM, ERROR, REST, FINE_SUM, FINE_ERROR, FINE_REST, MARGIN = range(8)
FACTORS = 8
NORMAL = 1e-37  # so that what is rounded to float32 loses no more than 2^-24 of itself

Sketch = namedtuple("Sketch", "rows coarse_width fine_width bias coarse fine")


def sketch_record(softmax_record: Int64, arrays: Mapping[str, np.ndarray]) -> Int64:
    """The record of a sketch whose `arrays` are those of the part, which the caller keeps alive."""
    basis, coarse, fine = arrays["basis"], arrays["coarse"], arrays["fine"]
    addresses = [array.ctypes.data for array in (basis, coarse, fine)]
    sizes = [basis.shape[0], coarse.shape[1] // LANES - EXTRA, fine.shape[1]]
    frobenius = float(np.linalg.norm(basis.astype(np.float64))) * (1 + 1e-9)
    # Scales, then rests, of sixteen rows; those of one row.
    extras = coarse[:, -LANES * EXTRA :].copy().view(np.float32).reshape(-1, 2, LANES)
    fine_extras = fine[:, -EXTRA:].copy().view(np.float32)
    most = np.maximum(extras.max(axis=(0, 2)), fine_extras.max(axis=0))
    reals = np.array([*arrays["limits"], frobenius, *most], np.float64)
    return np.concatenate([softmax_record, np.array(addresses + sizes), reals.view(np.int64)])


@inline
def sketch_at(record):
    """The sketch that a record describes."""
    return Sketch(
        record[ROWS],
        record[COARSE_WIDTH],
        record[FINE_WIDTH],
        float32_pointer(record[BIAS]),
        uint8_pointer(record[COARSE]),
        uint8_pointer(record[FINE]),
    )


@inline
def query_room(record):
    """float64 values of scratch for the codes of a query: two planes as wide as `fine`."""
    return record[FINE_WIDTH] // 4


@inline
def rotated_room(record):
    """float64 values of scratch for the rotated coordinates of a query."""
    return record[FINE_WIDTH] // 2 + 2


@inline
def describe(record, h, norm, rotated, planes, factors):
    """Rotate a row of hidden of that norm, write its codes and its factors."""
    dim, coarse, fine = record[DIM], record[COARSE_WIDTH], record[FINE_WIDTH]
    _rotate(record, h, rotated)
    low, scale = shift(planes, fine), plane_scale(rotated, fine)
    first = encode_planes(rotated, scale, 0, coarse, planes, low)
    others = encode_planes(rotated, scale, coarse, fine, planes, low)
    # Rotated in float32: each coordinate is a sum of D / 16 terms a lane and of sixteen lanes.
    off = (dim / 16 + 6) * 1.01 * 2.0**-24 * float64_of_bits(record[FROBENIUS]) * norm
    off += dim * 2.0**-140
    both = (first[0] + others[0], first[1] + others[1], first[2] + others[2], first[3] + others[3])
    error, rest, terms = _errors(record, KAPPA, norm, off, first)
    fine_error, fine_rest, fine_terms = _errors(record, FINE_KAPPA, norm, off, both)
    factors[SCALE], factors[SUM], factors[FINE_SUM] = scale, 128 * first[0], 128 * both[0]
    factors[ERROR], factors[REST] = error + NORMAL, rest + NORMAL
    factors[FINE_ERROR], factors[FINE_REST] = fine_error, fine_rest
    # The largest magnitudes that are added up for a row: float32 rounds each to 2^-24 of itself.
    terms = max(terms, fine_terms) + float64_of_bits(record[LARGEST_BIAS])
    exact = (dim + 32) * 2.0**-52 * norm * float64_of_bits(record[LARGEST_NORM])  # of dot64 itself
    factors[MARGIN] = 2.0**-20 * terms + exact + 1e-30


@inline
def _errors(record, place, norm, off, codes):
    """(K, rho, magnitudes) for coordinates of such codes, whose kappa and Q are at `place`."""
    _, squares, products, errors = codes
    kappa, most = float64_of_bits(record[place]), float64_of_bits(record[place + 1])
    eps, length = float64_of_bits(record[EPS]), np.sqrt(squares)
    error = kappa * length + most * (np.sqrt(errors) * 1.000001 + off + eps * length)
    # ||h - P^T g||^2, as ||P^T g||^2 <= (1 + eps) ||g||^2.
    left = norm * norm - 2.0 * products + 2.0 * length * off + (1.0 + eps) * squares
    rest = np.sqrt(max(0.0, left)) + 1e-6 * norm
    terms = float64_of_bits(record[MOST_SCALE]) * ((kappa + most) * length + 2.0 * error)
    return error, rest, terms + 2.0 * float64_of_bits(record[MOST_REST]) * rest


@inline
def _rotate(record, h, rotated):
    """P h in float32, and zeros up to the width of the codes."""
    count, dim = record[COORDINATES], record[DIM]
    basis, last = float32_pointer(record[BASIS]), count - 1
    for row in range(0, count, 4):
        dots = dots_1x4(
            basis, row * dim, min(row + 1, last) * dim, min(row + 2, last) * dim,
            min(row + 3, last) * dim, h, dim,
        )  # fmt: skip
        rotated[row], rotated[row + 1] = dots[0], dots[1]
        rotated[row + 2], rotated[row + 3] = dots[2], dots[3]
    for row in range(count, record[FINE_WIDTH]):
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
    size, low = _group_bytes(sketch), shift(planes, sketch.fine_width)
    second, third, fourth = min(group + 1, end), min(group + 2, end), min(group + 3, end)
    a_rows, b_rows = shift(sketch.coarse, group * size), shift(sketch.coarse, second * size)
    c_rows, e_rows = shift(sketch.coarse, third * size), shift(sketch.coarse, fourth * size)
    a, b, c, e = zero_sums(), zero_sums(), zero_sums(), zero_sums()
    a_low, b_low, c_low, e_low = zero_sums(), zero_sums(), zero_sums(), zero_sums()
    for quad in range(sketch.coarse_width // 4):
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
    return LANES * (sketch.coarse_width + EXTRA)


@inline
def _extras(sketch, group):
    """The scales of sixteen rows, then their rests."""
    size = _group_bytes(sketch)
    return as_float32(shift(sketch.coarse, group * size + LANES * sketch.coarse_width))


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
def estimate_of(sketch, factors, row, upper):
    """A row's estimate, from its bound of the first stage."""
    extras, lane = _extras(sketch, row // LANES), row % LANES
    return upper - extras[lane] * factors[ERROR] - extras[LANES + lane] * factors[REST]


@inline
def refine(sketch, planes, factors, row):
    """(estimate, slack) of the logit of a row, from its fine codes."""
    width = sketch.fine_width
    codes, low = shift(sketch.fine, row * width), shift(planes, width)
    a, b = zero_sums(), zero_sums()
    for piece in range(width // (4 * LANES)):
        a = multiply_row(a, codes, planes, piece)
        b = multiply_row(b, codes, low, piece)
    total = total_of_sums(join_planes(a, b)) - int(factors[FINE_SUM])
    own = as_float32(shift(codes, width - EXTRA))
    estimate = own[0] * factors[SCALE] * total + sketch.bias[row]
    return estimate, own[0] * factors[FINE_ERROR] + own[1] * factors[FINE_REST]
