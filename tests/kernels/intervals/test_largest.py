"""One bound for all rows of a sketch."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.kernels.intervals.largest import largest_bounds
from logitsieve.kernels.sketch.sketch import sketch_descriptor
from tests.synthetic import certified_arrays, make_hidden, make_softmax


@pytest.mark.parametrize("vocab_size", [1, 17, 100, 1000])
def test_it_is_above_every_logit_and_below_what_norms_allow(vocab_size: int) -> None:
    softmax, hidden = make_softmax(vocab_size), make_hidden(5)
    arrays = certified_arrays(softmax)
    descriptor, bounds = sketch_descriptor(softmax.descriptor, arrays), np.empty(5)
    assert largest_bounds(descriptor.ctypes.data, hidden, bounds) == -1
    norm, bias = softmax.norms
    for row in range(5):
        largest = (softmax.weight.astype(np.float64) @ hidden[row] + softmax.bias).max()
        assert largest <= bounds[row] < 0.9 * norm * np.linalg.norm(hidden[row]) + bias


def test_a_row_that_is_not_finite_is_named() -> None:
    softmax, hidden = make_softmax(40), make_hidden(3)
    descriptor = sketch_descriptor(softmax.descriptor, certified_arrays(softmax))
    hidden[1, 0] = np.inf
    assert largest_bounds(descriptor.ctypes.data, hidden, np.empty(3)) == 1
