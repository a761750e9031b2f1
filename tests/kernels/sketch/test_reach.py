"""Whether any row of a sketch may reach a logit."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.results import Bool, Float64
from logitsieve.heads import Softmax
from logitsieve.kernels.sketch.reach import rows_reach
from logitsieve.kernels.sketch.sketch import sketch_descriptor
from tests.synthetic import certified_arrays, make_hidden, make_softmax

ROWS = 12


def reached(softmax: Softmax, hidden: np.ndarray, floors: Float64) -> tuple[int, Bool]:
    """By arrays in the order of `coarse`, as a lost shard has them."""
    arrays = certified_arrays(softmax)
    order = arrays["order"]
    turned = Softmax(softmax.weight[order], softmax.bias[order], softmax.norms)
    arrays = {**arrays, "fine": arrays["fine"][order], "order": np.zeros(1, np.int32)}
    descriptor = sketch_descriptor(turned.descriptor, arrays)
    found = np.zeros(len(hidden), np.bool_)
    return int(rows_reach(descriptor.ctypes.data, hidden, floors, found)), found


@pytest.mark.parametrize("vocab_size", [1, 17, 100, 1000, 5000])
def test_the_largest_logit_is_reached_and_much_more_is_not(vocab_size: int) -> None:
    softmax, hidden = make_softmax(vocab_size), make_hidden(ROWS)
    logits = hidden.astype(np.float64) @ softmax.weight.T.astype(np.float64) + softmax.bias
    largest = logits.max(axis=1)
    assert reached(softmax, hidden, largest)[1].all()
    assert reached(softmax, hidden, largest - 1e-9)[1].all()
    norm, bias = softmax.norms
    possible = norm * np.linalg.norm(hidden, axis=1) + bias
    assert not reached(softmax, hidden, largest + 0.1 * possible)[1].any()


def test_floors_that_nothing_and_everything_reaches() -> None:
    softmax, hidden = make_softmax(100), make_hidden(ROWS)
    assert not reached(softmax, hidden, np.full(ROWS, 1e30))[1].any()
    for floor in (-1e30, -np.inf, np.nan):
        assert reached(softmax, hidden, np.full(ROWS, floor))[1].all()


def test_a_row_that_is_not_finite_is_named() -> None:
    softmax, hidden = make_softmax(40), make_hidden(3)
    hidden[1, 0] = np.inf
    assert reached(softmax, hidden, np.zeros(3))[0] == 1
