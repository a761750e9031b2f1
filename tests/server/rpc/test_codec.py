"""Every reply that a server writes is what a client reads."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from logitsieve.api.results import Answer, RowRange
from logitsieve.client.remote_decoder import to_reply
from logitsieve.decoding.engine import LocalEngine
from logitsieve.server.models.served import origin_of
from logitsieve.server.rpc.codec import to_decode_response, to_response
from logitsieve.server.rpc.methods import METHODS
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.test_congruence import assert_same

POINT = SimpleNamespace(model="demo", version="7", digest="d", head="lsh", knobs={"tables": 3.0})
ROWS = np.arange(4, dtype=np.float32)
ANSWER = Answer(
    "demo",
    "7",
    "d",
    "lsh",
    np.array([True, False, True, True]),
    np.arange(4, dtype=np.int32),
    np.array([False, True, False, False]),
    1e-3,
    {"tables": 3.0},
    "sampled",
    ROWS,
    ROWS - 1,
    ROWS + 1,
    ROWS + 9,
    rows_missing=(RowRange(0, 256), RowRange(512, 77)),
)
FLAGS = np.array([[True, False, False], [False, False, True]])
IDS = np.arange(6, dtype=np.int32).reshape(2, 3)
VALUES = IDS.astype(np.float32) + np.float32(0.1)
# What comes before the answer.
REPLIES: dict[str, tuple[np.ndarray, ...]] = {
    "top_k": (IDS, VALUES),
    "beam_step": (IDS, IDS + 1, VALUES, VALUES[::-1], FLAGS),
    "sample": (IDS, VALUES, VALUES[::-1]),
    "score": (VALUES,),
}


@pytest.mark.parametrize("field", METHODS)
@pytest.mark.parametrize("request_id", [0, 1, 300, (1 << 64) - 1])
def test_there_and_back(field: str, request_id: int) -> None:
    rpc: Any = METHODS[field].rpc
    answer = ANSWER
    if field == "score":
        answer = answer._replace(normalizer="", log_z=None)
    origin = origin_of(cast(LocalEngine, POINT))
    response = to_response(rpc.response, rpc.reply(*REPLIES[field], answer), origin, 5)
    message = pb.DecodeResponse.FromString(to_decode_response(request_id, field, response))
    assert (message.id, message.WhichOneof("reply")) == (request_id, field)
    read = to_reply(rpc, getattr(message, field))
    assert read.answer.queue_ns == 5
    if field == "score":  # nothing is said of a log Z that no normalizer found
        answer = answer._replace(log_z_low=None, log_z_high=None, log_z_error=None)
    assert_same(read, rpc.reply(*REPLIES[field], answer))
