"""The metadata of a call, and what becomes of a behaviour's failures, without a port."""

import asyncio
from typing import Any, NoReturn

import grpc
import pytest
from grpc import StatusCode

from logitsieve.api.errors import InvalidRequest, Overloaded
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.rpc.handlers import MAX_ID, Told, failed, parse, told, unary, waited_ns
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import TIMEOUT, TRAILER

REQUEST = pb.GetModelRequest(model="demo")


class Aborted(grpc.aio.AbortError):  # type: ignore[misc]  # the library is untyped
    pass


class Context:
    """A call that brings no metadata and has no deadline."""

    code, trailer = StatusCode.OK, b""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None

    async def abort(self, code: StatusCode, message: str, trailer: Any) -> NoReturn:
        self.code, self.trailer = code, dict(trailer)[TRAILER]
        raise Aborted


async def echo(request: pb.GetModelRequest, call: Call) -> pb.Model:
    return pb.Model(name=request.model)


async def refuse(request: pb.GetModelRequest, call: Call) -> bytes:
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


@pytest.mark.parametrize(("level", "named"), [("DEBUG", True), ("INFO", False)])
def test_the_log_names_the_client_of_a_failure_at_level_debug(
    level: str, named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Known(Context):
        def peer(self) -> str:
            return "ipv4:10.0.0.7:999"

    handler = unary("Get", pb.GetModelRequest, refuse, Metrics()).unary_unary
    with caplog.at_level(level, "logitsieve.server.rpc.handlers"), pytest.raises(Aborted):
        asyncio.run(handler(REQUEST.SerializeToString(), Known()))
    (record,) = caplog.records
    assert ("peer=ipv4:10.0.0.7:999" in record.getMessage()) == named


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(InvalidRequest, match="a serialized TopKRequest") as caught:
        parse(pb.TopKRequest, b"\xff")
    assert caught.value.field == "request"


def test_a_refusal_for_want_of_room_is_counted_as_shed() -> None:
    metrics = Metrics()

    status = failed(Overloaded("full", 0.05), Call("TopK"), metrics)
    assert status.code is StatusCode.RESOURCE_EXHAUSTED
    assert 'reason="in_flight"' in metrics.text().decode()


def test_a_cancelled_call_is_counted_and_stays_cancelled() -> None:
    metrics = Metrics()

    async def never(request: pb.GetModelRequest, call: Call) -> bytes:
        await asyncio.get_running_loop().create_future()
        return b""

    async def scene() -> None:
        handler = unary("Get", pb.GetModelRequest, never, metrics).unary_unary
        handling = asyncio.create_task(handler(REQUEST.SerializeToString(), Context()))
        await asyncio.sleep(0)
        handling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handling

    asyncio.run(scene())
    assert 'code="CANCELLED"' in metrics.text().decode()


def test_each_is_taken_from_one_walk() -> None:
    class Once:
        """Metadata that can be walked once."""

        walks = 0

        def __iter__(self) -> object:
            self.walks += 1
            pairs = (
                ("user-agent", "x"),
                ("x-request-id", "abc"),
                ("x-request-id", "another"),
                ("tracestate", "t"),
                ("traceparent", "p"),
                (TIMEOUT, "1000"),
            )
            return iter(pairs)

    metadata = Once()
    assert told(metadata) == Told("abc", {"tracestate": "t", "traceparent": "p"}, 1000)
    assert metadata.walks == 1
    assert told(None) == Told("", {}, 0)


@pytest.mark.parametrize("refused", ["", "a" * (MAX_ID + 1), b"abc"])
def test_only_ids_that_can_be_repeated_are_taken(refused: str | bytes) -> None:
    assert told((("x-request-id", refused),)).request_id == ""


@pytest.mark.parametrize("text", ["", "-5", "1e3", "9" * 8, "\u0661000"])
def test_only_plain_numbers_are_timeouts(text: str) -> None:
    assert told(((TIMEOUT, text),)).timeout_ms == 0


@pytest.mark.parametrize(
    ("timeout_ms", "left_s", "waited_ms"),
    [(1000, 0.75, 250), (1000, 1.25, 0), (1000, None, 0), (0, 0.75, 0)],  # gRPC rounds up
)
def test_a_call_has_waited_for_the_time_that_is_gone(
    timeout_ms: int, left_s: float | None, waited_ms: int
) -> None:
    assert waited_ns(timeout_ms, left_s) == waited_ms * 1_000_000
