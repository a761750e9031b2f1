"""The float32 numbers of stored rows, for callers of kernels."""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float32
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.rows.functions import DECODE, addresses, call_decode
from logitsieve.kernels.simd.pointers import pointer
from logitsieve.utils.floats import aligned, widened
from logitsieve.utils.stored import KINDS, StoredMatrix


def decoded(matrix: StoredMatrix) -> Float32:
    """float32 [V, D] of a stored matrix (docs/index-format.md defines them); F32 is not copied."""
    if matrix.kind == "F32":
        return matrix.data
    if not KINDS[matrix.kind].blocks:
        return widened(matrix.data)
    values = aligned(matrix.shape)
    stored = np.asarray(matrix.data).reshape(-1)
    decode_rows(int(addresses(matrix.kind)[DECODE]), stored, values.reshape(-1))
    return values


@kernel("(int64, uint8[::1], float32[::1])")
def decode_rows(address, stored, values):
    """Fill `values` with the numbers of stored rows; `address` is that of their `decode`."""
    return call_decode(address, pointer(stored), values.size, pointer(values))
