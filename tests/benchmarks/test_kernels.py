"""What the benchmark of kernels counts is what the head computes."""

import numpy as np
import pytest

from benchmarks.kernels import K, groups_read, sketch_bytes
from tests.synthetic import decaying, sketch_arrays, sketch_head


@pytest.mark.exhaustive
def test_groups_and_rows_read_are_those_of_an_answer() -> None:
    softmax, hidden_states = decaying(3_000, 96)
    head = sketch_head(softmax, sketch_arrays(softmax, np.eye(96), 16))
    read = np.empty((len(hidden_states), 4))
    assert groups_read(head._address, hidden_states, K, read) < 0
    np.testing.assert_array_equal(read[:, -1], head.topk(hidden_states, K).scanned)
    groups = -(-3_000 // 16)
    assert (np.diff(read[:, :-1]) <= 0).all()
    assert (read[:, 0] <= groups).all()
    assert read[:, 0].min() > 0
    arrays = head._arrays
    whole = sum(array.nbytes for array in arrays.values()) + softmax.stored.nbytes
    assert arrays["coarse"].nbytes < sketch_bytes(head, hidden_states) < whole
