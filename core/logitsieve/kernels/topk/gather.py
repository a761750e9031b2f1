"""Exact logits of named rows: the one gather-and-dot, and the lists behind an answer.

Shape letters: B batch rows, D hidden size, V vocabulary, M ids a row, C clusters, P probes.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float32, Float64, Int32, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import dot64, padded, row_of, widen_row
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer
from logitsieve.kernels.topk.descriptor import admissible, matrix_at


@inline
def sum_of(matrix, wide, i):
    """The logit of row i of W for one widened row of hidden, before it is rounded to float32."""
    return dot64(row_of(matrix.weight, i, matrix.dim), wide, matrix.dim) + matrix.bias[i]


@inline
def fill_logits(matrix, wide, ids, first, last, logits):
    """logits[first:last] of ids[first:last] for one widened row of hidden, exact."""
    for i in range(first, last):
        logits[i] = np.float32(sum_of(matrix, wide, ids[i]))


@kernel("(int64, float32[:,::1], int64[::1], int32[::1], float64[::1])")
def csr_logits(address: int, hidden: Float32, offsets: Int64, ids: Int32, logits: Float64) -> int:
    """Fill `logits` of the ids that each row of hidden [B, D] owns; ids within 0 .. V-1.

    Answers have them rounded to float32. `address` is that of W's record. Returns -1, or the first
    row that is not finite or too large.
    """
    record = int64_pointer(address)
    rows, dim = hidden.shape
    matrix = matrix_at(record, 0)
    scratch = np.empty(padded(dim), np.float64)
    wide, bad = pointer(scratch), -1
    for row in range(rows):
        norm = np.sqrt(widen_row(row_of(pointer(hidden), row, dim), wide, dim))
        if not admissible(record, 0, norm):
            bad = row
            break
        for i in range(offsets[row], offsets[row + 1]):
            logits[i] = sum_of(matrix, wide, ids[i])
    keep_alive(scratch)
    return bad
