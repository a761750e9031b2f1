"""Records: how a matrix that never changes is described to the kernels.

Numba unboxes each array argument of a call in some 50 ns, so a head's arrays travel as one int64
vector of addresses, sizes and float64 bits. Whoever makes a record keeps its arrays alive.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import padded, row_of, widen_row
from logitsieve.kernels.simd.pointers import float32_pointer, float64_of_bits, keep_alive, pointer

WEIGHT, BIAS, ROWS, DIM, LARGEST_NORM, LARGEST_BIAS = range(6)
RECORD = 6
LARGEST_LOGIT = 1e38  # beyond it float32 sums may overflow; such rows are refused

Matrix = namedtuple("Matrix", "weight bias rows dim")


def matrix_record(weight: Float32, bias: Float32) -> Int64:
    """The record of `weight` [V, D] with `bias` [V]."""
    record = np.zeros(RECORD, np.int64)
    record[WEIGHT], record[BIAS] = weight.ctypes.data, bias.ctypes.data
    record[ROWS], record[DIM] = weight.shape
    largest = np.array([largest_norm(weight), np.abs(bias).max()], np.float64)
    record[LARGEST_NORM : LARGEST_BIAS + 1] = largest.view(np.int64)
    return record


@kernel("(float32[:,::1],)")
def largest_norm(weight: Float32) -> float:
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
    return np.sqrt(largest) * (1.0 + 1e-12)


@inline
def matrix_at(record, place):
    """The matrix whose record starts at `place`."""
    weight = float32_pointer(record[place + WEIGHT])
    bias = float32_pointer(record[place + BIAS])
    return Matrix(weight, bias, record[place + ROWS], record[place + DIM])


@inline
def slack_at(record, place, norm):
    """How far a float32 logit may be from the float64 one, for a row of hidden of that norm.

    gamma_D ||w|| ||h||, underflow and rounding; infinite where float32 sums might overflow.
    """
    dim = record[place + DIM]
    product = norm * float64_of_bits(record[place + LARGEST_NORM])
    if not product + float64_of_bits(record[place + LARGEST_BIAS]) <= LARGEST_LOGIT:
        return np.inf
    gamma = dim * 2.0**-24 / (1.0 - dim * 2.0**-24)
    return (1.01 * gamma + 2.0**-22) * product + dim * 2.0**-148


@inline
def admissible(record, place, norm):
    """False where a logit might overflow, and where the row holds NaN or infinity."""
    product = norm * float64_of_bits(record[place + LARGEST_NORM])
    return product + float64_of_bits(record[place + LARGEST_BIAS]) <= LARGEST_LOGIT
