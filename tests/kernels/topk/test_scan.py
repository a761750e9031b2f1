"""Scans offer rows in any order, more than once, to one query or to four: the best are the same."""

import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer
from logitsieve.kernels.topk.descriptor import matrix_at
from logitsieve.kernels.topk.queries import (
    LOGITS,
    empty_heaps,
    queries_at,
    query_size,
    widen_queries,
    write_answers,
)
from logitsieve.kernels.topk.scan import ALONE, LISTED, scan_four, scan_one
from tests.oracle import best, logits64
from tests.synthetic import make_hidden, make_softmax

SOFTMAX, HIDDEN = make_softmax(700, 33), make_hidden(4, 33)


@kernel("(int64, float32[:,::1], int32[::1], int32[:,::1], float32[:,::1], boolean, boolean)")
def scan_listed(address, hidden, listed, ids, logits, together, distinct):
    """Fill ids and logits [4, K] with the best of `listed`, for four rows of hidden."""
    descriptor, (count, dim), limit = int64_pointer(address), hidden.shape, ids.shape[1]
    scratch = np.empty(count * query_size(dim, limit) + LOGITS, np.float64)
    queries = queries_at(
        pointer(scratch), count, pointer(hidden), pointer(ids), dim, limit, distinct
    )
    bad = widen_queries(descriptor, queries, count)
    empty_heaps(descriptor, 0, queries, count)
    matrix, first, last = matrix_at(descriptor, 0), np.int64(0), listed.size
    a, b, c, e = np.int64(0), np.int64(1), np.int64(2), np.int64(3)
    if together:
        scan_four(matrix, LISTED, pointer(listed), first, last, queries, a, b, c, e, ALONE)
    else:
        for q in range(count):
            scan_one(matrix, LISTED, pointer(listed), first, last, queries, q)
    for q in range(count):
        write_answers(queries, q, pointer(logits))
    keep_alive(scratch)
    return bad


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 9, 13])
@pytest.mark.parametrize("dim", [3, 64, 90])
def test_short_lists_end_before_what_is_prefetched(count: int, dim: int) -> None:
    softmax, hidden = make_softmax(40, dim), make_hidden(4, dim)
    listed = np.random.default_rng(count).permutation(40)[:count].astype(np.int32)
    ids, logits = np.empty((4, 2), np.int32), np.empty((4, 2), np.float32)
    scan_listed(softmax.descriptor.ctypes.data, hidden, listed, ids, logits, False, False)
    true = logits64(softmax.weight, softmax.bias, hidden)
    true[:, np.delete(np.arange(40), listed)] = -np.inf
    np.testing.assert_array_equal(ids, best(true, 2))
    np.testing.assert_array_equal(logits, np.take_along_axis(true, ids.astype(int), 1).astype("f4"))


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("repeats", [1, 3])
def test_the_best_of_listed_rows(together: bool, repeats: int) -> None:
    rows = np.random.default_rng(0).permutation(700)[:423]
    listed = np.random.default_rng(1).permutation(np.repeat(rows, repeats)).astype(np.int32)
    ids, logits = np.empty((4, 9), np.int32), np.empty((4, 9), np.float32)
    address = SOFTMAX.descriptor.ctypes.data
    bad = scan_listed(address, HIDDEN, listed, ids, logits, together, repeats > 1)
    assert bad == -1
    true = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    others = np.delete(np.arange(700), rows)
    true[:, others] = -np.inf
    np.testing.assert_array_equal(ids, best(true, 9))
    np.testing.assert_array_equal(logits, np.take_along_axis(true, ids.astype(int), 1).astype("f4"))
