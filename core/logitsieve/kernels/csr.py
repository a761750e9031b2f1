"""Reductions over CSR rows: row r owns values[offsets[r]:offsets[r+1]]."""

from __future__ import annotations

from math import exp, log

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.exponential import exp_lanes
from logitsieve.kernels.lanes import (
    LANES,
    larger,
    largest_lane,
    load,
    multiply_add,
    pair_sum,
    splat32,
    splat64,
    widen,
    zeros64,
)
from logitsieve.kernels.pointers import pointer, shift
from logitsieve.types.results import Float32, Int64


@kernel("(int64[::1], float32[::1], float32[::1])")
def csr_log_sum_exp(offsets: Int64, values: Float32, out: Float32) -> None:
    """log of the sum of exp(values) of each row, summed in float64; -inf for an empty row."""
    start = pointer(values)
    for row in range(out.size):
        out[row] = _log_sum_exp(shift(start, offsets[row]), offsets[row + 1] - offsets[row])


@inline
def _log_sum_exp(values, count):
    if count == 0:
        return np.float32(-np.inf)
    whole = count - count % LANES
    most = splat32(np.float32(-np.inf))
    for i in range(0, whole, LANES):
        most = larger(most, load(values, i))
    largest = largest_lane(most)
    for i in range(whole, count):
        largest = max(largest, values[i])
    if not -np.inf < largest < np.inf:
        return largest
    total, one, shifted = zeros64(), splat64(1.0), splat32(-largest)
    for i in range(0, whole, LANES):
        x = multiply_add(load(values, i), splat32(np.float32(1)), shifted)
        total = multiply_add(widen(exp_lanes(x)), one, total)
    tail = 0.0
    for i in range(whole, count):
        tail += exp(float(values[i]) - float(largest))
    return np.float32(float(largest) + log(pair_sum(total) + tail))
