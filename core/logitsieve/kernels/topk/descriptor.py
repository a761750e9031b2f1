"""Descriptors: how a matrix that never changes is handed to the kernels.

Numba unboxes each array argument of a call in some 50 ns, so a head's arrays travel as one int64
vector of addresses, sizes and float64 bits. Its owner keeps the arrays alive.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import padded, row_of, widen_row
from logitsieve.kernels.simd.pointers import float32_pointer, float64_of_bits, keep_alive, pointer

WEIGHT, BIAS, ROWS, DIM, LARGEST_NORM, LARGEST_BIAS = range(6)
MATRIX_FIELDS = 6
LARGEST_LOGIT = 1e38  # beyond it float32 sums may overflow; such rows are refused

# What proofs/scan.py proves to be enough.
NORM_SPARE = 1.0 + 1e-12  # of a norm in float64
UNIT32 = 2.0**-24  # float32 rounds to this share
GAMMA_SPARE = 1.01  # of the rounding of a float32 dot, for what computing the slack rounds
DOT64_SPARE = 2.0**-22  # of norms, for `dot64` beside the real number
DOT_UNDERFLOW = 2.0**-148  # for each product

Matrix = namedtuple("Matrix", "weight bias rows dim")


def fill_fields(descriptor: Int64, fields: Mapping[int, np.ndarray | float]) -> Int64:
    """Write each field to its place: an array's address, a whole number, or a float64's bits."""
    for place, value in fields.items():
        if isinstance(value, np.ndarray):
            descriptor[place] = value.ctypes.data
        elif isinstance(value, float):
            descriptor[place] = np.float64(value).view(np.int64)
        else:
            descriptor[place] = value
    return descriptor


def matrix_descriptor(weight: Float32, bias: Float32) -> Int64:
    fields = {
        WEIGHT: weight,
        BIAS: bias,
        ROWS: weight.shape[0],
        DIM: weight.shape[1],
        LARGEST_NORM: largest_norm(weight),
        LARGEST_BIAS: float(np.abs(bias).max()),
    }
    return fill_fields(np.zeros(MATRIX_FIELDS, np.int64), fields)


@kernel("(float32[:,::1],)")
def largest_norm(weight):
    """max ||w_i||, in float64 and not below the true one."""
    rows, dim = weight.shape
    scratch = np.empty(padded(dim), np.float64)
    start, wide = pointer(weight), pointer(scratch)
    largest = 0.0
    for row in range(rows):
        squares = widen_row(row_of(start, row, dim), wide, dim)
        if largest == largest and not squares <= largest:
            largest = squares  # NaN, once met, stays, and every request is refused
    keep_alive(scratch)
    keep_alive(weight)
    return np.sqrt(largest) * NORM_SPARE


@inline
def matrix_at(descriptor, place):
    """The matrix whose descriptor starts at `place`."""
    weight = float32_pointer(descriptor[place + WEIGHT])
    bias = float32_pointer(descriptor[place + BIAS])
    return Matrix(weight, bias, descriptor[place + ROWS], descriptor[place + DIM])


@inline
def slack_at(descriptor, place, norm):
    """The most by which a float32 logit is off the float64 one, for a row of hidden of that norm.

    gamma_D ||w|| ||h||, underflow and rounding; infinite where float32 sums might overflow.
    """
    dim = descriptor[place + DIM]
    product = norm * float64_of_bits(descriptor[place + LARGEST_NORM])
    if not product + float64_of_bits(descriptor[place + LARGEST_BIAS]) <= LARGEST_LOGIT:
        return np.inf
    gamma = dim * UNIT32 / (1.0 - dim * UNIT32)
    return (GAMMA_SPARE * gamma + DOT64_SPARE) * product + dim * DOT_UNDERFLOW


@inline
def widen_hidden(descriptor, h, wide):
    """Copy a row of hidden to float64, padded with zeros, and return its norm.

    -1 where a logit might overflow, and where the row holds NaN or infinity: it is refused.
    """
    norm = np.sqrt(widen_row(h, wide, descriptor[DIM]))
    product = norm * float64_of_bits(descriptor[LARGEST_NORM])
    fits = product + float64_of_bits(descriptor[LARGEST_BIAS]) <= LARGEST_LOGIT
    return norm if fits else -1.0
