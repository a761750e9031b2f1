"""Top k of the rows of W that are listed for each query, as CSR.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.pointers import as_float32, int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.descriptor import matrix_at
from logitsieve.kernels.topk.queries import (
    CHUNK,
    STATE,
    Queries,
    empty_heaps,
    widen_queries,
    write_answers,
)
from logitsieve.kernels.topk.scan import LISTED, scan_one


@kernel(
    "(int64, float32[:,::1], int64[::1], int32[::1], int32[:,::1], float32[:,::1], int32[::1],"
    " int64)"
)
def listed_topk(
    address: int,
    hidden: Float32,
    offsets: Int64,
    listed: Int32,
    ids: Int32,
    logits: Float32,
    scanned: Int32,
    start: int,
) -> int:
    """Fill ids and logits [B, K] and scanned [B] of rows start, start + 1, ... of hidden [B, D].

    Row start + r may choose among the distinct ids listed[offsets[r] : offsets[r+1]]; `address` is
    that of W's record. A row with fewer than K gets scanned = -1 and no answer. Returns how many
    such rows there are, or -1 - r where row r of hidden is not finite or too large.
    """
    record = int64_pointer(address)
    limit, dim = ids.shape[1], hidden.shape[1]
    scratch = np.empty(padded(dim) + STATE + limit + CHUNK // 2, np.float64)
    wide = pointer(scratch)
    states = shift(wide, padded(dim))
    values = shift(states, STATE)
    spare = as_float32(shift(values, limit))
    list_ids, unfilled = pointer(listed), 0
    for place in range(offsets.size - 1):
        row = start + place
        here, kept = row_of(pointer(hidden), row, dim), row_of(pointer(ids), row, limit)
        queries = Queries(here, wide, states, values, kept, spare, limit, False)
        if widen_queries(record, queries, 1) >= 0:
            unfilled = -1 - row
            break
        empty_heaps(record, 0, queries, 1)
        first, last = offsets[place], offsets[place + 1]
        scan_one(matrix_at(record, 0), LISTED, list_ids, first, last, queries, 0)
        size = write_answers(queries, 0, row_of(pointer(logits), row, limit))
        scanned[row] = last - first if size == limit else -1
        unfilled += size < limit
    keep_alive(scratch)
    keep_alive(listed)
    return unfilled
