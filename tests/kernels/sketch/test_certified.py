"""Certified kernels over one sketch: statuses, slices, and bounds on both sides."""

from __future__ import annotations

import numpy as np

from logitsieve.kernels.sketch.certified import (
    certified_bounds,
    certified_candidates,
    certified_topk,
)
from logitsieve.kernels.sketch.sketch import sketch_descriptor
from tests.oracle import best, logits64
from tests.synthetic import certified_arrays, make_hidden, make_softmax

SOFTMAX, HIDDEN = make_softmax(900, 24), make_hidden(6)
ARRAYS = certified_arrays(SOFTMAX)
DESCRIPTOR = sketch_descriptor(SOFTMAX.descriptor, ARRAYS)
ADDRESS = DESCRIPTOR.ctypes.data
TRUE = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)


def test_only_the_rows_of_a_slice_are_answered() -> None:
    ids, logits = np.full((6, 4), -1, np.int32), np.empty((6, 4), np.float32)
    scanned = np.full(6, -7, np.int32)
    assert certified_topk(ADDRESS, HIDDEN, ids, logits, scanned, 2, 5) == 0
    np.testing.assert_array_equal(ids[2:5], best(TRUE, 4)[2:5])
    assert (ids[[0, 1, 5]] == -1).all()
    assert (scanned[2:5] < 900).all()


def test_candidates_hold_the_best_and_bound_the_others() -> None:
    bad, offsets, ids, logits, upper = certified_candidates(ADDRESS, HIDDEN, 4)
    assert bad == -1
    for row in range(6):
        mine = ids[offsets[row] : offsets[row + 1]]
        assert set(best(TRUE, 4)[row]) <= set(mine.tolist())
        assert np.delete(TRUE[row], mine).max() <= upper[row]
    np.testing.assert_array_equal(logits[: offsets[1]], TRUE[0, ids[: offsets[1]]].astype("f4"))


def test_every_logit_is_within_its_bounds() -> None:
    lower, upper = np.empty((2, 900), np.float32)
    assert certified_bounds(ADDRESS, HIDDEN[:1], lower, upper) == -1
    assert (lower <= TRUE[0]).all()
    assert (upper >= TRUE[0]).all()


def test_rows_that_are_not_finite_are_named() -> None:
    hidden = HIDDEN.copy()
    hidden[[3, 5], 0] = np.inf, np.nan
    answers = np.empty((6, 4), np.int32), np.empty((6, 4), np.float32), np.empty(6, np.int32)
    assert certified_topk(ADDRESS, hidden, *answers, 0, 6) == -4
    assert certified_candidates(ADDRESS, hidden, 4)[0] == 3
    lower, upper = np.empty((2, 900), np.float32)
    assert certified_bounds(ADDRESS, hidden[3:4], lower, upper) == 0
