"""The methods of a remote decoder over a transport that is a function."""

import asyncio
import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from logitsieve.client import DecoderClient
from logitsieve.client.remote_decoder import AsyncRemoteDecoder, RemoteDecoder, to_reply
from logitsieve.utils.hidden import as_hidden, as_wire
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import RPCS, SCORE, Rpc
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


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"k": -1}, "k"),
        ({"k": 1 << 32}, "k"),
        ({"k": True}, "k"),
        ({"k": "1"}, "k"),
        ({"hidden": []}, "hidden"),
        ({"hidden": "text"}, "hidden"),
        ({"knobs": {"probes": "many"}}, "knobs"),
        ({"normalizer": "none"}, "normalizer"),
    ],
)
def test_what_cannot_be_sent_is_refused_here(arguments: dict[str, Any], field: str) -> None:
    given = {"hidden": np.zeros((1, 2)), "k": 1, **arguments}
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


REQUIRED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "topk": ((3,), {}),
    "score": (([1],), {}),
    "sample": ((2,), {"seeds": 5}),
    "beam_step": ((), {"beams_in": 1, "beams_out": 2}),
}


def reply_to(rpc: Rpc[Any]) -> Any:
    response = rpc.response()
    for field in rpc.reply._fields[:-1]:
        put(getattr(response, field), np.ones((1, 2), np.float32))
    for field in ("exact", "scanned", "fallback"):
        put(getattr(response.answer, field), np.ones(1, np.int32))
    return response


class Blocking(RemoteDecoder):
    def _ask(self, rpc: Rpc[Any], request: Any) -> Any:
        assert isinstance(request, rpc.request)
        assert request.target.head.name == "exact"
        return reply_to(rpc)


class Awaited(AsyncRemoteDecoder):
    async def _ask(self, rpc: Rpc[Any], request: Any) -> Any:
        return Blocking()._ask(rpc, request)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_a_method_sends_its_request_and_returns_its_reply(rpc: Rpc[Any]) -> None:
    arguments, keywords = REQUIRED[rpc.method]
    call = (np.zeros((1, 4)), *arguments)
    reply = getattr(Blocking(), rpc.method)(*call, **keywords, head="exact")
    assert type(reply) is rpc.reply
    awaited = asyncio.run(getattr(Awaited(), rpc.method)(*call, **keywords, head="exact"))
    assert type(awaited) is rpc.reply


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_help_is_complete(rpc: Rpc[Any]) -> None:
    method = getattr(AsyncRemoteDecoder, rpc.method)
    assert {"head", "knobs", "min_precision", "exact"} < inspect.signature(method).parameters.keys()
    assert "see `" not in (inspect.getdoc(method) or "see `")


def test_seeds_are_drawn_by_the_client() -> None:
    sent: list[pb.SampleRequest] = []

    class Recording(RemoteDecoder):
        def _ask(self, rpc: Rpc[Any], request: Any) -> Any:
            sent.append(request)
            return reply_to(rpc)

    for _ in range(2):
        Recording().sample(np.zeros((2, 3)))
    first, second = (request.seeds for request in sent)
    assert (first.rows, first.cols, first.dtype) == (2, 1, pb.DTYPE_UINT64)
    assert first.data != second.data
