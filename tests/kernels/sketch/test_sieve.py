"""The sieve drops rows by the sketch, and none that is among the best."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.heads.certified import NO_FLOORS
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.pointers import int64_pointer
from logitsieve.kernels.sketch.certified import certified_topk
from logitsieve.kernels.sketch.sieve import FIRST, first_groups
from logitsieve.kernels.sketch.sketch import sketch_descriptor
from logitsieve.kernels.sketch.thresholds import SEEDS
from tests.heads.test_certified import decaying
from tests.oracle import best, logits64
from tests.synthetic import certified_arrays, make_softmax


@kernel("(int64, int64)")
def groups_of(address, limit):
    return first_groups(int64_pointer(address), limit)


@pytest.mark.parametrize(
    ("limit", "groups"), [(1, FIRST), (100, 50), (281, 141), (282, 0), (4500, 0)]
)
def test_the_groups_that_give_the_threshold(limit: int, groups: int) -> None:
    """Or none: all is computed where so many answers are wanted that they would hold half of V."""
    softmax = make_softmax(4500, 8)
    descriptor = sketch_descriptor(softmax.descriptor, certified_arrays(softmax))
    assert groups_of(descriptor.ctypes.data, limit) == groups


def test_the_best_are_found_and_few_rows_are_computed() -> None:
    softmax, hidden = decaying(4000, 96)
    ids, scanned = found(softmax, hidden, NO_FLOORS)
    np.testing.assert_array_equal(ids, best(logits64(softmax.weight, softmax.bias, hidden), 5))
    assert scanned.mean() < 1000


def test_rows_that_reach_a_floor_are_found_and_no_others_are_looked_for() -> None:
    softmax, hidden = decaying(4000, 96)
    logits = logits64(softmax.weight, softmax.bias, hidden)
    wanted = best(logits, 5)
    _, scanned = found(softmax, hidden, NO_FLOORS)
    for place in range(5):
        floors = np.take_along_axis(logits, wanted[:, place : place + 1], 1)[:, 0]
        ids, fewer = found(softmax, hidden, floors)
        np.testing.assert_array_equal(ids[:, : place + 1], wanted[:, : place + 1])
        assert (fewer <= scanned).all()
    _, fewest = found(softmax, hidden, logits.max(axis=1) + 10.0)
    assert fewest.max() <= 2 * SEEDS * 5
    for lowest in (-np.inf, np.nan):
        ids, same = found(softmax, hidden, np.full(len(hidden), lowest))
        np.testing.assert_array_equal(ids, wanted)
        np.testing.assert_array_equal(same, scanned)


def found(softmax: Softmax, hidden: np.ndarray, floors: np.ndarray) -> tuple[np.ndarray, ...]:
    """The five best ids, and how many rows were computed."""
    descriptor = sketch_descriptor(softmax.descriptor, arrays := certified_arrays(softmax))
    rows, hidden = len(hidden), np.ascontiguousarray(hidden)
    ids, logits = np.empty((rows, 5), np.int32), np.empty((rows, 5), np.float32)
    scanned, address = np.empty(rows, np.int32), descriptor.ctypes.data
    assert certified_topk(floors, address, hidden, ids, logits, scanned, 0, rows) == 0
    assert arrays  # whose addresses the descriptor has
    return ids, scanned
