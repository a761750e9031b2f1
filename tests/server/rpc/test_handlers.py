"""What becomes of a behaviour's failures, without a port."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest
from grpc import StatusCode

from logitsieve.api.errors import InvalidRequest, Overloaded
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.rpc.handlers import parse, settle, unary, waited_ns
from logitsieve.server.rpc.status import CallStatus
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import TIMEOUT, TRAILER

REQUEST = pb.GetModelRequest(model="demo")


class Aborted(Exception):
    pass


class Context:
    """A call that brings no metadata."""

    code, trailer = StatusCode.OK, b""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, code: StatusCode, message: str, trailer: Any) -> NoReturn:
        self.code, self.trailer = code, dict(trailer)[TRAILER]
        raise Aborted


async def echo(request: pb.GetModelRequest, context: Context, call: Call) -> pb.Model:
    return pb.Model(name=request.model)


async def refuse(request: pb.GetModelRequest, context: Context, call: Call) -> bytes:
    raise InvalidRequest("model", request.model, "another")


def test_a_message_goes_in_and_bytes_come_out() -> None:
    handler = unary("Get", pb.GetModelRequest, echo, Metrics()).unary_unary
    reply = asyncio.run(handler(REQUEST.SerializeToString(), Context()))
    assert pb.Model.FromString(reply).name == "demo"


@pytest.mark.parametrize(
    ("message", "field"), [(REQUEST.SerializeToString(), "model"), (b"\xff", "request")]
)
def test_a_failure_ends_the_call_with_a_trailer(message: bytes, field: str) -> None:
    context = Context()
    handler = unary("Get", pb.GetModelRequest, refuse, Metrics()).unary_unary
    with pytest.raises(Aborted):
        asyncio.run(handler(message, context))
    assert context.code is StatusCode.INVALID_ARGUMENT
    assert pb.Error.FromString(context.trailer).field == field


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(InvalidRequest, match="a serialized TopKRequest") as caught:
        parse(pb.TopKRequest, b"\xff")
    assert caught.value.field == "request"


def test_a_refusal_for_want_of_room_is_counted_as_shed() -> None:
    metrics = Metrics()

    async def full() -> bytes:
        raise Overloaded("full", 0.05)

    status = asyncio.run(settle(full(), Call("TopK"), metrics))
    assert isinstance(status, CallStatus)
    assert status.code is StatusCode.RESOURCE_EXHAUSTED
    assert 'reason="in_flight"' in metrics.text().decode()


def test_a_cancelled_call_is_counted_and_stays_cancelled() -> None:
    metrics = Metrics()

    async def scene() -> None:
        never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        settling = asyncio.create_task(settle(never, Call("TopK"), metrics))
        await asyncio.sleep(0)
        settling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settling

    asyncio.run(scene())
    assert 'code="CANCELLED"' in metrics.text().decode()


@pytest.mark.parametrize(
    ("told", "left_s", "waited_ms"),
    [
        ("1000", 0.75, 250),
        ("1000", 1.25, 0),  # gRPC rounds deadlines up
        ("1000", None, 0),
        ("", 0.75, 0),
        ("-5", 0.75, 0),
        ("1e3", 0.75, 0),
        ("9" * 8, 0.75, 0),
        ("\u0661000", 0.75, 0),
        (None, 0.75, 0),
    ],
)
def test_a_call_has_waited_for_the_time_that_is_gone(
    told: str | None, left_s: float | None, waited_ms: int
) -> None:
    class Timed(Context):
        def time_remaining(self) -> float | None:
            return left_s

    metadata = () if told is None else (("x-request-id", "a"), (TIMEOUT, told))
    assert waited_ns(metadata, Timed()) == waited_ms * 1_000_000
