"""Top k of all rows of W: the exact softmax's answer.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float32, Int32
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.pointers import as_float32, int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.topk.descriptor import ROWS, matrix_at
from logitsieve.kernels.topk.queries import (
    CHUNK,
    STATE,
    Queries,
    at_once,
    empty_heaps,
    widen_queries,
    write_answers,
)
from logitsieve.kernels.topk.scan import scan_all


@kernel("(int64, float32[:,::1], int32[:,::1], float32[:,::1], int32[::1], int64, int64)")
def dense_topk(
    address: int,
    hidden: Float32,
    ids: Int32,
    logits: Float32,
    scanned: Int32,
    start: int,
    stop: int,
) -> int:
    """Fill ids and logits [B, K] and scanned [B] for rows start .. stop-1 of hidden [B, D].

    `address` is that of W's record. Returns -1, or the first row that is not finite or too large.
    """
    record = int64_pointer(address)
    limit, dim = ids.shape[1], hidden.shape[1]
    block = at_once(stop - start, dim, limit)
    scratch = np.empty(block * (padded(dim) + STATE + limit) + 2 * CHUNK, np.float64)
    bad = -1
    for first in range(start, stop, block):
        count = min(stop - first, block)
        queries = Queries(
            row_of(pointer(hidden), first, dim),
            pointer(scratch),
            shift(pointer(scratch), block * padded(dim)),
            shift(pointer(scratch), block * (padded(dim) + STATE)),
            row_of(pointer(ids), first, limit),
            as_float32(shift(pointer(scratch), block * (padded(dim) + STATE + limit))),
            limit,
            False,
        )
        bad = widen_queries(record, queries, count)
        if bad >= 0:
            bad += first
            break
        empty_heaps(record, 0, queries, count)
        scan_all(matrix_at(record, 0), queries, count)
        for q in range(count):
            scanned[first + q] = record[ROWS]
            write_answers(queries, q, row_of(pointer(logits), first, limit))
    keep_alive(scratch)
    return bad
