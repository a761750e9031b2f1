import numpy as np

from logitsieve.heads import Softmax
from logitsieve.heads._base.head import ready_hidden, ready_request, softmax_sha256


def test_arrays_are_neither_copied_nor_widened_twice() -> None:
    hidden_states = np.ones((3, 4), np.float32)
    assert ready_hidden(hidden_states, 4) is hidden_states
    ready, rows, k = ready_request(hidden_states, 2, 4, 10)
    assert ready is hidden_states
    assert (rows, k) == (3, 2)
    stored = np.array([[1, 0.5], [2, 3]], np.float16)
    softmax = Softmax(stored, np.zeros(2, np.float32))
    assert softmax.stored is stored
    assert softmax.weight is softmax.weight
    np.testing.assert_array_equal(softmax.weight, stored.astype(np.float32))
    assert (softmax.vocab_size, softmax.dim) == (2, 2)


def test_the_identity_of_a_matrix_covers_its_shape_and_its_bias_and_is_found_once() -> None:
    weight, bias = np.arange(21, dtype=np.float32).reshape(7, 3), np.ones(7, np.float32)
    known = softmax_sha256(weight, bias)
    assert softmax_sha256(weight.copy(), bias.copy()) == known
    assert softmax_sha256(weight, bias + 1) != known
    # The same numbers in the same order, cut elsewhere.
    numbers = np.arange(12, dtype=np.float32)
    wide = softmax_sha256(numbers[:9].reshape(3, 3), numbers[9:])
    assert wide != softmax_sha256(numbers[:6].reshape(6, 1), numbers[6:])
    softmax, before = Softmax(weight, bias), softmax_sha256(weight, bias)
    assert softmax.sha256 == before
    weight[3, 1] += 1
    assert softmax.sha256 == before != softmax_sha256(weight, bias)
