"""The sieve drops rows by the sketch, and none that is among the best."""

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.pointers import int64_pointer
from logitsieve.kernels.sketch.certified_topk import certified_topk
from logitsieve.kernels.sketch.sieve import FIRST, first_groups
from logitsieve.kernels.sketch.sketch import sketch_descriptor
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
    ids, scanned = found(softmax, hidden)
    np.testing.assert_array_equal(ids, best(logits64(softmax.weight, softmax.bias, hidden), 5))
    assert scanned.mean() < 1000


def found(softmax: Softmax, hidden: np.ndarray) -> tuple[np.ndarray, ...]:
    """The five best ids, and how many rows were computed."""
    descriptor = sketch_descriptor(softmax.descriptor, arrays := certified_arrays(softmax))
    rows, hidden = len(hidden), np.ascontiguousarray(hidden)
    ids, logits = np.empty((rows, 5), np.int32), np.empty((rows, 5), np.float32)
    scanned, address = np.empty(rows, np.int32), descriptor.ctypes.data
    assert certified_topk(address, hidden, ids, logits, scanned, 0, rows) == 0
    assert arrays  # whose addresses the descriptor has
    return ids, scanned
