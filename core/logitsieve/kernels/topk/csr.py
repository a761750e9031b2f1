"""Reductions over CSR rows: row r owns values[offsets[r]:offsets[r+1]]."""

from __future__ import annotations

from math import log

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.exponential import sum_of_exponentials
from logitsieve.kernels.simd.lanes import LANES, larger, largest_lane, load, splat32
from logitsieve.kernels.simd.pointers import pointer, shift


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
    total = sum_of_exponentials(values, count, largest)
    return np.float32(float(largest) + log(total))
