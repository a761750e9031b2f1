"""Requests and replies of a remote decoder, without a server."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from logitsieve.client import DecoderClient
from logitsieve.client.remote_decoder import to_reply
from logitsieve.utils.hidden import as_hidden, as_wire
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import SCORE
from tests.refusals import refused


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
    hidden = np.arange(6).reshape(2, 3).astype(dtype)
    for form in (hidden, np.asfortranarray(hidden)):
        tensor = put(pb.Tensor(), as_wire(form))
        assert (tensor.dtype, tensor.rows, tensor.cols) == (code, 2, 3)
        assert len(tensor.data) == 6 * size
        np.testing.assert_array_equal(as_hidden(as_wire(form)), as_hidden(form))


UNSENT: dict[str, list[Any]] = {
    "k": [-1, 1 << 32, True, "1"],
    "hidden": [[], "text"],
    "knobs": [{"probes": "many"}],
    "normalizer": ["none"],
}


@pytest.mark.parametrize("field", UNSENT)
def test_what_cannot_be_sent_is_refused_here(field: str) -> None:
    for value in UNSENT[field]:
        given: Any = {"hidden": np.zeros((1, 2)), "k": 1, field: value}
        with DecoderClient("127.0.0.1:1") as client, refused(field):
            client.topk(**given)


@pytest.mark.parametrize("method", ["topk", "score", "sample"])
def test_a_misspelt_keyword_is_a_mistake_of_the_caller(method: str) -> None:
    with DecoderClient("127.0.0.1:1") as client, pytest.raises(TypeError, match="normaliser"):
        getattr(client, method)(np.zeros((1, 2)), 1, normaliser="exact")


def scored(flags: np.ndarray, log_probs: np.ndarray) -> pb.ScoreResponse:
    response = pb.ScoreResponse(log_probs=put(pb.Tensor(), log_probs))
    for tensor in (response.answer.exact, response.answer.fallback):
        put(tensor, flags)
    put(response.answer.scanned, np.zeros(len(flags), np.int32))
    return response


def test_the_caller_owns_the_arrays_of_a_reply() -> None:
    reply = to_reply(SCORE, scored(np.zeros(1, np.bool_), np.ones((1, 2), np.float32)))
    reply.log_probs[0, 0] = 5.0
    assert reply.log_probs.tolist() == [[5.0, 1.0]]
    assert reply.answer.log_z is None


def test_nothing_is_promised_of_rows_that_an_older_server_calls_not_exact() -> None:
    response = scored(np.array([True, False]), np.ones((2, 1), np.float32))
    assert to_reply(SCORE, response).answer.chances.tolist() == [0.0, 1.0]
    response.answer.chance = 1e-15
    assert to_reply(SCORE, response).answer.chances.tolist() == [0.0, 1e-15]
