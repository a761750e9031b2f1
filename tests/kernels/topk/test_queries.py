"""Queries: how many go together, and which rows of hidden are refused."""

import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.dots import padded
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer
from logitsieve.kernels.topk.queries import (
    LOGITS,
    NORM,
    QUERIES_AT_ONCE,
    SCRATCH,
    STATE,
    at_once,
    queries_at,
    query_room,
    widen_queries,
)
from tests.synthetic import make_hidden, make_softmax


@kernel("(int64, int64)")
def together(rows, room):
    return at_once(rows, room)


@kernel("(int64, float32[:,::1], int32[:,::1], float64[:,::1], float64[::1])")
def widen(address, hidden, kept, wide, norms):
    """The first bad row, or -1; wide [Q, D] and norms [Q] of those before it."""
    (count, dim), limit = hidden.shape, kept.shape[1]
    scratch = np.empty(count * query_room(dim, limit) + LOGITS, np.float64)
    queries = queries_at(pointer(scratch), count, pointer(hidden), pointer(kept), dim, limit, False)
    bad = widen_queries(int64_pointer(address), queries, count)
    for q in range(count if bad < 0 else bad):
        norms[q] = queries.states[STATE * q + NORM]
        for d in range(dim):
            wide[q, d] = queries.wide[q * padded(dim) + d]
    keep_alive(scratch)
    return bad


@pytest.mark.parametrize(
    ("rows", "room", "expected"),
    [
        (1, 10, 1),
        (63, 10, 63),
        (1000, 10, QUERIES_AT_ONCE),
        (9, SCRATCH // 3, 3),
        (9, 2 * SCRATCH, 1),
    ],
)
def test_as_many_go_together_as_scratch_holds(rows: int, room: int, expected: int) -> None:
    assert together(rows, room) == expected


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_the_first_bad_row_is_named_and_the_others_are_widened(value: float) -> None:
    softmax, hidden = make_softmax(40, 19), make_hidden(5, 19)
    address, kept = softmax.descriptor.ctypes.data, np.empty((5, 3), np.int32)
    wide, norms = np.empty((5, 19)), np.empty(5)
    assert widen(address, hidden, kept, wide, norms) == -1
    np.testing.assert_array_equal(wide, hidden)
    np.testing.assert_allclose(norms, np.linalg.norm(hidden.astype(np.float64), axis=1))
    hidden[3, 18] = value
    assert widen(address, hidden, kept, wide, norms) == 3
