"""Statuses of the screen's kernels: rows without an answer are counted, bad ones named."""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.screen.route import screen_descriptor
from logitsieve.kernels.screen.screen_topk import screen_candidates, screen_topk
from tests.oracle import logits64
from tests.synthetic import make_softmax

SOFTMAX = make_softmax(30, 4)
CENTROIDS = np.eye(2, 4, dtype=np.float32)
OFFSETS, IDS = np.array([0, 5, 7], np.int32), np.array([8, 1, 29, 4, 6, 3, 1], np.int32)
DESCRIPTOR, KEPT = screen_descriptor(SOFTMAX.descriptor, CENTROIDS, OFFSETS, IDS, 1)
ADDRESS = DESCRIPTOR.ctypes.data
HIDDEN = np.array([[2, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 3]], np.float32)  # clusters 0, 1, 0


def test_rows_whose_lists_are_too_short_are_counted() -> None:
    ids, logits = np.empty((3, 3), np.int32), np.empty((3, 3), np.float32)
    scanned = np.empty(3, np.int32)
    assert screen_topk(ADDRESS, HIDDEN, ids, logits, scanned, 0, 3) == 1
    assert scanned.tolist() == [5, -1, 5]
    true = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    for row in (0, 2):
        listed = np.sort(IDS[:5])
        wanted = listed[np.argsort(-true[row, listed], kind="stable")[:3]]
        np.testing.assert_array_equal(ids[row], wanted)


def test_candidates_are_the_lists() -> None:
    status, offsets, ids, _ = screen_candidates(ADDRESS, HIDDEN, 3, True)
    assert status == 1
    assert offsets.tolist() == [0, 5, 7, 12]
    assert ids.tolist() == [*IDS[:5], *IDS[5:], *IDS[:5]]


def test_the_status_names_the_first_row_that_is_not_finite() -> None:
    hidden = HIDDEN.copy()
    hidden[1, 2] = np.nan
    ids, logits = np.empty((3, 3), np.int32), np.empty((3, 3), np.float32)
    assert screen_topk(ADDRESS, hidden, ids, logits, np.empty(3, np.int32), 0, 3) == -2
    assert screen_candidates(ADDRESS, hidden, 3, True)[0] == -2
