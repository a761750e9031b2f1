"""The best of all rows, and of listed ones, with their statuses."""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.topk.exact_topk import dense_topk, listed_topk
from tests.oracle import best, logits64
from tests.synthetic import make_hidden, make_softmax

SOFTMAX, HIDDEN = make_softmax(90, 20), make_hidden(5, 20)
TRUE = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
ADDRESS = SOFTMAX.descriptor.ctypes.data


def empty(rows: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        np.full((rows, k), -1, np.int32),
        np.empty((rows, k), np.float32),
        np.full(rows, -7, np.int32),
    )


def test_only_the_rows_of_a_slice_are_answered() -> None:
    ids, logits, scanned = empty(5, 4)
    assert dense_topk(ADDRESS, HIDDEN, ids, logits, scanned, 1, 4) == 0
    np.testing.assert_array_equal(ids[1:4], best(TRUE, 4)[1:4])
    assert scanned.tolist() == [-7, 90, 90, 90, -7]
    assert (ids[[0, 4]] == -1).all()


def test_the_status_names_the_first_row_that_is_not_finite() -> None:
    hidden = HIDDEN.copy()
    hidden[[2, 3], 5] = np.nan, np.inf
    assert dense_topk(ADDRESS, hidden, *empty(5, 4), 0, 5) == -3
    assert dense_topk(ADDRESS, hidden, *empty(5, 4), 3, 5) == -4
    offsets, listed = np.arange(6) * 4, np.tile(np.arange(4, dtype=np.int32), 5)
    assert listed_topk(ADDRESS, hidden, offsets, listed, *empty(5, 4), 0) == -3


def test_a_list_that_is_too_short_has_no_answer() -> None:
    listed = np.array([7, 3, 50, 80, 9, 11, 2], np.int32)
    ids, logits, scanned = empty(5, 3)
    offsets = np.array([0, 4, 6, 7])
    assert listed_topk(ADDRESS, HIDDEN, offsets, listed, ids, logits, scanned, 2) == 2
    assert scanned.tolist() == [-7, -7, 4, -1, -1]
    order = listed[:4][np.argsort(-TRUE[2, listed[:4]], kind="stable")[:3]]
    np.testing.assert_array_equal(ids[2], order)
    np.testing.assert_array_equal(logits[2], TRUE[2, order].astype(np.float32))
