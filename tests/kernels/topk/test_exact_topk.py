import numpy as np
import pytest

from tests.oracle import logits64
from tests.refusals import refused
from tests.synthetic import make_hidden, make_softmax


@pytest.mark.parametrize("dim", [1, 15, 16, 40])
def test_logits_are_the_oracles(dim: int) -> None:
    softmax, hidden = make_softmax(50, dim), make_hidden(3, dim)
    offsets, ids = np.array([0, 50, 50, 53]), np.r_[np.arange(50), 7, 49, 7].astype(np.int32)
    expected = logits64(softmax.weight, softmax.bias, hidden)
    expected = np.concatenate([expected[0], expected[2, [7, 49, 7]]])
    np.testing.assert_array_equal(softmax.logits64(hidden, offsets, ids), expected)
    found = softmax.logits(hidden, offsets, ids)
    np.testing.assert_array_equal(found, expected.astype(np.float32), strict=True)


def test_a_row_without_ids_is_looked_at_too() -> None:
    softmax, hidden = make_softmax(5, 4), make_hidden(3, 4)
    hidden[1, 3] = np.nan
    with refused("hidden[1]"):
        softmax.logits64(hidden, np.zeros(4, np.int64), np.empty(0, np.int32))
