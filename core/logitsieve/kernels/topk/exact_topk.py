"""Exact top k of all rows of W or of given ones, and exact logits of given ids."""

import numpy as np

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.dots import padded, row_of
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer
from logitsieve.kernels.topk.descriptor import exact_logit, matrix_at, share_of_rows, widen_hidden
from logitsieve.kernels.topk.queries import LOGITS, at_once, begin_block, query_size, write_answers
from logitsieve.kernels.topk.scan import LISTED, scan_all, scan_one


@kernel("(int64, float32[:,::1], int32[:,::1], float32[:,::1], int32[::1], int64, int64)")
def dense_topk(address, hidden, ids, logits, scanned, start, stop):
    descriptor = int64_pointer(address)
    limit, dim = ids.shape[1], hidden.shape[1]
    begin, end = share_of_rows(descriptor)
    block, status = at_once(stop - start, query_size(dim, limit)), 0
    scratch = np.empty(block * query_size(dim, limit) + LOGITS, np.float64)
    for first in range(start, stop, block):
        count = min(stop - first, block)
        queries, bad = begin_block(
            descriptor, pointer(scratch), block, pointer(hidden), pointer(ids), first, count, limit,
            False,
        )  # fmt: skip
        if bad >= 0:
            status = -1 - bad
            break
        scan_all(matrix_at(descriptor, 0), queries, count, begin, end)
        for q in range(count):
            scanned[first + q] = end - begin
            write_answers(queries, q, row_of(pointer(logits), first, limit))
    keep_alive(scratch)
    return status


@kernel(
    "(int64, float32[:,::1], int64[::1], int32[::1], int32[:,::1], float32[:,::1], int32[::1],"
    " int64)"
)
def listed_topk(address, hidden, offsets, listed, ids, logits, scanned, start):
    """Like `dense_topk`; row start + r chooses among the `listed` ids of CSR row r."""
    descriptor = int64_pointer(address)
    limit, dim = ids.shape[1], hidden.shape[1]
    scratch = np.empty(query_size(dim, limit) + LOGITS, np.float64)
    unfilled, one = 0, np.int64(1)
    for place in range(offsets.size - 1):
        row = start + place
        queries, bad = begin_block(
            descriptor, pointer(scratch), one, pointer(hidden), pointer(ids), row, one, limit, True
        )
        if bad >= 0:
            unfilled = -1 - row
            break
        first, last = offsets[place], offsets[place + 1]
        scan_one(matrix_at(descriptor, 0), LISTED, pointer(listed), first, last, queries, 0)
        size = write_answers(queries, 0, row_of(pointer(logits), row, limit))
        scanned[row] = last - first if size == limit else -1
        unfilled += size < limit
    keep_alive((scratch, listed))
    return unfilled


@kernel("(int64, float32[:,::1], int64[::1], int32[::1], float64[::1])")
def csr_logits(address, hidden, offsets, ids, logits):
    """Fill float64 `logits` of the CSR ids of each row."""
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
