"""Descriptors: one int64 vector of addresses, sizes and float64 bits of a head's arrays.

Unboxing each array as an argument would take 50 ns. The owner of a descriptor keeps the arrays
alive.
"""

from collections import namedtuple
from collections.abc import Mapping

import numpy as np

from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.rows.functions import (
    CODED,
    DECODE,
    DOT,
    F32,
    MAGNITUDES,
    STORED,
    addresses,
    call_decode,
    call_dot,
    way_of,
)
from logitsieve.kernels.simd.dots import dot64, padded, row_of, widen_row
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.pointers import (
    float32_pointer,
    float64_of_bits,
    int64_pointer,
    keep_alive,
    pointer,
    shift,
    uint8_pointer,
)
from logitsieve.utils.stored import StoredMatrix

(
    WEIGHT, BIAS, ROWS, DIM, LARGEST_NORM, LARGEST_BIAS, KIND, ROW_BYTES, FUNCTIONS, LARGEST_PARTS,
    SHARE, SHARES, MASK,
) = range(13)  # fmt: skip
# A thread goes through share number SHARE of SHARES. MASK is of a call (allowed.py).
MATRIX_FIELDS = 13
LARGEST_LOGIT = 1e38  # larger float32 sums may overflow: such rows of hidden are refused

# Proven to be enough by proofs/scan.py.
NORM_SPARE = 1.0 + 1e-12  # covers rounding of a norm
UNIT32 = 2.0**-24  # relative rounding error of float32
GAMMA_SPARE = 1.01  # covers rounding of the slack
DOT64_SPARE = 2.0**-22  # error of `dot64`, relative to the product of norms
DOT_UNDERFLOW = 2.0**-148  # for each product
CODED_STEPS = 8  # roundings of a product of codes on top of D / 16

# `weight` points to float32 rows, if the kind is F32; `stored` to rows of `row_bytes` each;
# `functions` to the addresses of their readers.
Matrix = namedtuple("Matrix", "weight bias rows dim kind stored row_bytes functions")
TILE_BYTES = 128 * 1024  # of a matrix, which queries share in the L2 cache


def fill_fields(descriptor: Int64, fields: Mapping[int, np.ndarray | float]) -> Int64:
    for place, value in fields.items():
        if isinstance(value, np.ndarray):
            descriptor[place] = value.ctypes.data
        elif isinstance(value, float):
            descriptor[place] = np.float64(value).view(np.int64)
        else:
            descriptor[place] = value
    return descriptor


def matrix_descriptor(weight: Float32 | StoredMatrix, bias: Float32) -> Int64:
    matrix = StoredMatrix.of(weight)
    fields: dict[int, np.ndarray | float] = {
        WEIGHT: matrix.data,
        BIAS: bias,
        ROWS: matrix.vocab_size,
        SHARES: 1,
        DIM: matrix.dim,
        LARGEST_BIAS: float(np.abs(bias).max()),
        KIND: way_of(matrix.kind),
        ROW_BYTES: matrix.row_bytes,
    }
    if matrix.kind != "F32":
        fields[FUNCTIONS] = addresses(matrix.kind)
    descriptor = fill_fields(np.zeros(MATRIX_FIELDS, np.int64), fields)
    address = descriptor.ctypes.data
    fill_fields(descriptor, {LARGEST_NORM: largest_norm(address, DECODE)})
    if descriptor[KIND] >= CODED:
        fill_fields(descriptor, {LARGEST_PARTS: largest_norm(address, MAGNITUDES)})
    return descriptor


def shares_of(descriptor: Int64, count: int) -> list[Int64]:
    return [fill_fields(descriptor.copy(), {SHARE: i, SHARES: count}) for i in range(count)]


def masked_by(descriptor: Int64, mask: Int32) -> Int64:
    """Return a descriptor with a mask [B, ceil(V / 32)], which the caller keeps alive."""
    return fill_fields(descriptor.copy(), {MASK: mask})


@inline
def share_of_rows(descriptor):
    rows, share, shares = descriptor[ROWS], descriptor[SHARE], descriptor[SHARES]
    return rows * share // shares, rows * (share + 1) // shares


@kernel("(int64, int64)")
def largest_norm(address, function):
    """Return an upper bound of max ||w_i||, or NaN; `function` is DECODE or MAGNITUDES."""
    matrix = matrix_at(int64_pointer(address), 0)
    dim, largest = matrix.dim, 0.0
    wide, floats = np.empty(padded(dim), np.float64), np.empty(tile_size(matrix), np.float32)
    for row in range(matrix.rows):
        values = row_of(matrix.weight, row, dim)
        if matrix.kind != F32:
            begin, values = row_of(matrix.stored, row, matrix.row_bytes), pointer(floats)
            call_decode(matrix.functions[function], begin, dim, values)
        squares = widen_row(values, pointer(wide), dim)
        if largest == largest and not squares <= largest:
            largest = squares  # a NaN stays, and every request is refused
    keep_alive((wide, floats))
    return np.sqrt(largest) * NORM_SPARE


@inline
def number_at(descriptor, place):
    return float64_of_bits(descriptor[place])


@inline
def matrix_at(descriptor, place):
    return Matrix(
        float32_pointer(descriptor[place + WEIGHT]), float32_pointer(descriptor[place + BIAS]),
        descriptor[place + ROWS], descriptor[place + DIM], descriptor[place + KIND],
        uint8_pointer(descriptor[place + WEIGHT]), descriptor[place + ROW_BYTES],
        int64_pointer(descriptor[place + FUNCTIONS]),
    )  # fmt: skip


@inline
def _read_as(matrix, kind, weight):
    return Matrix(
        weight, matrix.bias, matrix.rows, matrix.dim, np.int64(kind), matrix.stored,
        matrix.row_bytes, matrix.functions,
    )  # fmt: skip


@inline
def by_values(matrix):
    return _read_as(matrix, F32 if matrix.kind == F32 else STORED, matrix.weight)


@inline
def shared_rows(matrix):
    return max(LANES, TILE_BYTES // (4 * matrix.dim) // LANES * LANES)


@inline
def tile_size(matrix):
    return shared_rows(matrix) * matrix.dim if matrix.kind != F32 else 0


@inline
def as_floats(matrix, first, last, scratch):
    """Return the matrix with rows first .. last-1 as float32, decoded to `scratch` if needed."""
    if matrix.kind == F32:
        return matrix
    begin, count = row_of(matrix.stored, first, matrix.row_bytes), (last - first) * matrix.dim
    call_decode(matrix.functions[DECODE], begin, count, scratch)
    return _read_as(matrix, F32, shift(scratch, -first * matrix.dim))


@inline
def slack_at(descriptor, place, norm):
    """Bound the error of a float32 logit for a row of hidden of this norm.

    It is gamma_D ||w|| ||h||, underflow and rounding; infinite if sums might overflow.
    """
    dim = descriptor[place + DIM]
    product = norm * number_at(descriptor, place + LARGEST_NORM)
    if not product + number_at(descriptor, place + LARGEST_BIAS) <= LARGEST_LOGIT:
        return np.inf
    gamma = dim * UNIT32 / (1.0 - dim * UNIT32)
    return (GAMMA_SPARE * gamma + DOT64_SPARE) * product + dim * DOT_UNDERFLOW


@inline
def coded_slack_at(descriptor, place, norm, off):
    """Bound the error of a logit from codes of a row and of hidden, with `off` = ||h - g||.

    It is ||w|| ||h - g||, and the rounding of each number of w and of a row's sum.
    """
    dim, length = descriptor[place + DIM], norm + off
    largest = number_at(descriptor, place + LARGEST_NORM)
    product = length * number_at(descriptor, place + LARGEST_PARTS)
    if not product + number_at(descriptor, place + LARGEST_BIAS) <= LARGEST_LOGIT:
        return np.inf
    share = (dim / LANES + CODED_STEPS) * UNIT32 * GAMMA_SPARE
    return largest * (off + DOT64_SPARE * norm) + share * product + dim * DOT_UNDERFLOW


@inline
def widen_hidden(descriptor, h, wide):
    """Copy a row of hidden to float64, padded; return its norm, or -1 to refuse it."""
    norm = np.sqrt(widen_row(h, wide, descriptor[DIM]))
    product = norm * number_at(descriptor, LARGEST_NORM)
    fits = product + number_at(descriptor, LARGEST_BIAS) <= LARGEST_LOGIT
    return norm if fits else -1.0


@inline
def exact_logit(matrix, wide, i):
    if matrix.kind == F32:
        return dot64(row_of(matrix.weight, i, matrix.dim), wide, matrix.dim) + matrix.bias[i]
    row = row_of(matrix.stored, i, matrix.row_bytes)
    return call_dot(matrix.functions[DOT], row, wide, matrix.dim) + matrix.bias[i]


@inline
def fill_logits(matrix, wide, ids, first, last, logits):
    for i in range(first, last):
        logits[i] = np.float32(exact_logit(matrix, wide, ids[i]))
