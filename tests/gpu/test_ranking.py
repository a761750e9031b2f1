import numpy as np
import pytest
import torch

from logitsieve.gpu.device_head import EXTRA_CANDIDATES, rank, rank_by_scores, rank_of
from logitsieve.heads import Softmax
from tests.gpu.opened import TYPES, matrix_of, stored_as, there
from tests.oracle import best, logits64
from tests.synthetic import make_hidden, make_softmax


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [1, 7, 100, 400])
def test_candidates_hold_the_best(dtype: str, k: int) -> None:
    softmax, hidden_states = stored_as(make_softmax(400), dtype), make_hidden(6)
    found = rank_by_scores(matrix_of(softmax), there(hidden_states), k)
    true = logits64(softmax.weight, softmax.bias, hidden_states)
    assert found.proven.all()
    assert (found.scanned == 400).all()
    np.testing.assert_array_equal(found.ids.cpu(), best(true, k))
    chosen = np.take_along_axis(true, found.ids.cpu().numpy().astype(int), 1)
    np.testing.assert_array_equal(found.logits.cpu(), chosen)


def test_more_ties_than_candidates_leave_a_row_open() -> None:
    """Every row of W twenty times; the second context ties everything."""
    softmax = make_softmax(30)
    softmax = Softmax(np.repeat(softmax.weight, 20, axis=0), np.zeros(600, np.float32))
    hidden_states = make_hidden(2)
    hidden_states[1] = 0
    matrix, tensor = matrix_of(softmax), there(hidden_states)
    for k, settled in ((5, [True, False]), (600 - EXTRA_CANDIDATES, [True, True])):
        found = rank_by_scores(matrix, tensor, k)
        assert found.proven.tolist() == settled
        assert (found.scanned < 0).tolist() == [not each for each in settled]
    everything = rank_of(matrix.logits64(tensor), 25)
    true = logits64(softmax.weight, softmax.bias, hidden_states)
    np.testing.assert_array_equal(everything.ids.cpu(), best(true, 25))
    assert everything.proven.all()


def test_lists_with_room_left_and_equal_logits() -> None:
    softmax = make_softmax(10)
    softmax = Softmax(softmax.weight[[0, 0, 1, 0, 2]], softmax.bias[[0, 0, 1, 0, 2]])
    ids = torch.tensor([[3, -1, 1, 0, -1]], dtype=torch.int32)
    found, logits = rank(matrix_of(softmax), there(make_hidden(1)), there(ids.numpy()), 4)
    assert found.tolist() == [[0, 1, 3, -1]]
    assert logits[0, 3].item() == -torch.inf
