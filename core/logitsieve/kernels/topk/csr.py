"""Exact logits of CSR rows, of which row r owns places offsets[r] .. offsets[r+1]-1.

Shape letters: B batch rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.rows.functions import DOT, F32, call_dot
from logitsieve.kernels.simd.dots import dot64, padded, row_of
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer
from logitsieve.kernels.topk.descriptor import matrix_at, widen_hidden


@inline
def exact_logit(matrix, wide, i):
    """The logit of row i of W for one widened row of hidden, before it is rounded to float32."""
    if matrix.kind == F32:
        return dot64(row_of(matrix.weight, i, matrix.dim), wide, matrix.dim) + matrix.bias[i]
    row = row_of(matrix.stored, i, matrix.row_bytes)
    return call_dot(matrix.functions[DOT], row, wide, matrix.dim) + matrix.bias[i]


@inline
def fill_logits(matrix, wide, ids, first, last, logits):
    """logits[first:last] of ids[first:last] for one widened row of hidden, exact."""
    for i in range(first, last):
        logits[i] = np.float32(exact_logit(matrix, wide, ids[i]))


@kernel("(int64, float32[:,::1], int64[::1], int32[::1], float64[::1])")
def csr_logits(address, hidden, offsets, ids, logits):
    """Fill `logits` of the ids that each row of hidden [B, D] owns; ids within 0 .. V-1.

    Answers have them rounded to float32. `address` is that of W's descriptor. Returns -1, or the
    first row that is not finite or too large.
    """
    descriptor = int64_pointer(address)
    rows, dim = hidden.shape
    matrix = matrix_at(descriptor, 0)
    scratch = np.empty(padded(dim), np.float64)
    wide, bad = pointer(scratch), -1
    for row in range(rows):
        if widen_hidden(descriptor, row_of(pointer(hidden), row, dim), wide) < 0:
            bad = row
            break
        for i in range(offsets[row], offsets[row + 1]):
            logits[i] = exact_logit(matrix, wide, ids[i])
    keep_alive(scratch)
    return bad
