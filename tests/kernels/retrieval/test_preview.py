import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.index_builder.fit.svd import preview_arrays
from logitsieve.kernels.retrieval.preview import preview_select
from tests.synthetic import Arrays, make_hidden, make_softmax


def select(
    hidden_states: np.ndarray, arrays: Arrays, bias: np.ndarray, width: int, count: int
) -> np.ndarray:
    selected = np.full((len(hidden_states), count), -1, np.int32)
    preview_select(hidden_states, arrays["basis"], arrays["preview"], bias, width, selected)
    return np.sort(selected, axis=1)


def scores(hidden_states: np.ndarray, arrays: Arrays, bias: np.ndarray, width: int) -> np.ndarray:
    columns = np.concatenate(list(arrays["preview"][:, :width].astype(np.float64)), axis=1)
    turned = hidden_states.astype(np.float64) @ arrays["basis"][:width].T.astype(np.float64)
    return np.asarray(turned @ columns[:, : len(bias)] + bias)


@given(
    vocab_size=st.integers(1, 400), dim=st.integers(1, 40), rows=st.integers(1, 9), data=st.data()
)
def test_the_best_are_selected(vocab_size: int, dim: int, rows: int, data: st.DataObject) -> None:
    softmax, hidden_states = make_softmax(vocab_size, dim), make_hidden(rows, dim)
    arrays = preview_arrays(softmax, dim)
    width = data.draw(st.integers(1, dim))
    count = data.draw(st.integers(1, vocab_size))
    found = select(hidden_states, arrays, softmax.bias, width, count)
    assert (np.diff(found, axis=1) > 0).all()
    assert ((found >= 0) & (found < vocab_size)).all()
    true = scores(hidden_states, arrays, softmax.bias, width)
    worst = np.take_along_axis(true, found.astype(np.int64), 1).min(axis=1)
    for row in range(rows):
        left = np.delete(true[row], found[row])
        assert left.size == 0 or left.max() <= worst[row] + 1e-4


@pytest.mark.parametrize("count", [1, 37, 500])
def test_equal_scores_go_to_the_lower_id(count: int) -> None:
    softmax, hidden_states = make_softmax(900, 8), make_hidden(5, 8)
    arrays = preview_arrays(softmax, 8)
    arrays["preview"][:] = 0
    bias = np.array([2, -1, 3], np.float32).repeat(300)
    order = np.argsort(-bias, kind="stable")[:count]
    found = select(hidden_states, arrays, bias, 8, count)
    np.testing.assert_array_equal(found, np.tile(np.sort(order), (5, 1)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_scores_that_are_no_numbers_select_different_rows_of_w(value: float) -> None:
    softmax, hidden_states = make_softmax(300, 24), make_hidden(6, 24)
    hidden_states[2] = value
    arrays = preview_arrays(softmax, 24)
    found = select(hidden_states, arrays, softmax.bias, 24, 50)
    assert (np.diff(found, axis=1) > 0).all()
    assert ((found >= 0) & (found < 300)).all()
    neighbours = select(hidden_states[3:], arrays, softmax.bias, 24, 50)
    np.testing.assert_array_equal(found[3:], neighbours)
