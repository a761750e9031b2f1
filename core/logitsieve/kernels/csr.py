"""Reductions over CSR rows: row r owns values[offsets[r]:offsets[r+1]]."""

from __future__ import annotations

from math import exp, log

import numpy as np

from logitsieve.kernels.compile import kernel
from logitsieve.types.results import Float32, Int64


@kernel("(int64[::1], float32[::1], float32[::1])")
def csr_log_sum_exp(offsets: Int64, values: Float32, out: Float32) -> None:
    """log of the sum of exp(values) of each row, in float64; -inf for an empty row."""
    for row in range(out.size):
        largest = -np.inf
        for i in range(offsets[row], offsets[row + 1]):
            largest = max(largest, float(values[i]))
        total = 0.0
        for i in range(offsets[row], offsets[row + 1]):
            total += exp(float(values[i]) - largest)
        out[row] = np.float32(largest + log(total)) if total > 0.0 else np.float32(-np.inf)
