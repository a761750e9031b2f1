"""Requests and replies of a remote decoder, without a server."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from logitsieve.client.remote_decoder import to_reply
from logitsieve.utils.hidden import as_hidden, as_wire
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import SCORE


@pytest.mark.parametrize(
    ("dtype", "code", "size"),
    [
        (np.float32, pb.DTYPE_FLOAT32, 4),
        (np.float64, pb.DTYPE_FLOAT32, 4),
        (np.float16, pb.DTYPE_FLOAT16, 2),
        (ml_dtypes.bfloat16, pb.DTYPE_BFLOAT16, 2),
        (np.uint16, pb.DTYPE_BFLOAT16, 2),
    ],
)
def test_half_sized_values_stay_half_sized(dtype: Any, code: int, size: int) -> None:
    hidden_states = np.arange(6).reshape(2, 3).astype(dtype)
    for form in (hidden_states, np.asfortranarray(hidden_states)):
        tensor = put(pb.Tensor(), as_wire(form))
        assert (tensor.dtype, tensor.rows, tensor.cols) == (code, 2, 3)
        assert len(tensor.data) == 6 * size
        np.testing.assert_array_equal(as_hidden(as_wire(form)), as_hidden(form))


def test_nothing_is_promised_of_rows_that_an_older_server_calls_not_exact() -> None:
    response = pb.ScoreResponse(log_probs=put(pb.Tensor(), np.ones((2, 1), np.float32)))
    for tensor in (response.answer.proven, response.answer.fallback):
        put(tensor, np.array([True, False]))
    put(response.answer.scanned, np.zeros(2, np.int32))
    assert to_reply(SCORE, response).answer.max_errors.tolist() == [0.0, 1.0]
    response.answer.max_error = 1e-15
    assert to_reply(SCORE, response).answer.max_errors.tolist() == [0.0, 1e-15]
