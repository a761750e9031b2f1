import numpy as np
import pytest
import torch

from logitsieve.gpu import matrix as module
from tests.gpu.opened import TYPES, matrix_of, stored_as, there
from tests.stored import BLOCKS, reference, stored_softmax
from tests.synthetic import make_hidden, make_softmax


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scale", [1.0, 2.0**-70, 2.0**40])
def test_float32_logits_are_within_their_slack(dtype: str, scale: float) -> None:
    """Of rows whose products cancel, too: the slack depends on norms alone."""
    if dtype == "float16" and scale != 1.0:
        pytest.skip("beyond float16")
    softmax = stored_as(make_softmax(200, 33, scale=scale), dtype)
    softmax.bias[:] = 0
    hidden_states = make_hidden(40, 33)
    hidden_states[1::2, 1:] = -hidden_states[1::2, :1] * np.sign(hidden_states[1::2, 1:])
    matrix, tensor = matrix_of(softmax), there(hidden_states)
    off = (matrix.scores(tensor).double() - matrix.logits64(tensor)).abs()
    slack = matrix.slack(tensor)
    assert (off <= slack[:, None]).all()
    assert (off.amax(1) > slack / 1e4).any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [1, 15, 16, 33])
def test_exact_logits_are_those_of_the_host(dtype: str, dim: int) -> None:
    softmax = stored_as(make_softmax(70, dim), dtype)
    hidden_states = make_hidden(3, dim)
    ids = np.array([[5, -1, 0, 69], [1, 2, 3, 4], [-1, -1, 8, 8]], np.int32)
    found = matrix_of(softmax).logits64(there(hidden_states), there(ids)).cpu().numpy()
    assert (found[ids < 0] == -np.inf).all()
    offsets = np.concatenate([[0], np.cumsum((ids >= 0).sum(1))])
    expected = softmax.logits64(hidden_states, offsets, ids[ids >= 0])
    np.testing.assert_array_equal(found[ids >= 0], expected)


def test_a_half_type_is_widened_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_WIDENED", 32)
    matrix, hidden_states = (
        matrix_of(stored_as(make_softmax(90, 8), "float16")),
        there(make_hidden(3, 8)),
    )
    off = (matrix.scores(hidden_states).double() - matrix.logits64(hidden_states)).abs()
    assert (off <= matrix.slack(hidden_states)[:, None]).all()


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_become_float32(kind: str) -> None:
    softmax = stored_softmax(kind, 9)
    np.testing.assert_array_equal(matrix_of(softmax).weight.cpu(), reference(softmax.matrix))


def test_batches_fit_their_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = matrix_of(make_softmax(300))
    assert list(matrix.slices(3)) == [slice(0, 3)]
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 700)
    assert list(matrix.slices(3)) == [slice(0, 2), slice(2, 3)]
    assert list(matrix.slices(2, columns=5000)) == [slice(0, 1), slice(1, 2)]
    assert torch.equal(matrix.ids.cpu(), torch.arange(300, dtype=torch.int32))
