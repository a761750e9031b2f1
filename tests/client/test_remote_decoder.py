"""The methods of a remote decoder over a transport that is a function."""

import asyncio
import inspect
from typing import Any

import numpy as np
import pytest

from logitsieve.client.remote_decoder import AsyncRemoteDecoder, RemoteDecoder
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import RPCS, Rpc

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
