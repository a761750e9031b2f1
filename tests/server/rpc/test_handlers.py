"""The metadata of a call, and what becomes of a behaviour's failures, without a port."""

import asyncio

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.rpc.handlers import CallMetadata, client_wait_ns, read_metadata, unary
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import TIMEOUT
from tools.fuzz.services import Aborted, Context

REQUEST = pb.GetModelRequest(model="demo")


async def refuse(request: pb.GetModelRequest, call: Call) -> bytes:
    raise InvalidRequest("model", request.model, "another")


@pytest.mark.parametrize(("level", "named"), [("DEBUG", True), ("INFO", False)])
def test_debug_names_the_client(level: str, named: bool, caplog: pytest.LogCaptureFixture) -> None:
    class Known(Context):
        def peer(self) -> str:
            return "ipv4:10.0.0.7:999"

    handler = unary("Get", pb.GetModelRequest, refuse, Metrics()).unary_unary
    with caplog.at_level(level, "logitsieve.server.rpc.handlers"), pytest.raises(Aborted):
        asyncio.run(handler(REQUEST.SerializeToString(), Known()))
    (record,) = caplog.records
    assert ("peer=ipv4:10.0.0.7:999" in record.getMessage()) == named


async def test_cancelled_calls_are_counted() -> None:
    metrics = Metrics()

    async def never(request: pb.GetModelRequest, call: Call) -> bytes:
        await asyncio.get_running_loop().create_future()
        return b""

    handler = unary("Get", pb.GetModelRequest, never, metrics).unary_unary
    handling = asyncio.create_task(handler(REQUEST.SerializeToString(), Context()))
    await asyncio.sleep(0)
    handling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handling
    assert 'code="CANCELLED"' in metrics.text().decode()


def test_what_is_told_comes_from_one_walk_of_the_metadata() -> None:
    class Once:
        walks = 0

        def __iter__(self) -> object:
            self.walks += 1
            pairs = (
                *(("user-agent", "x"), ("x-request-id", "abc"), ("x-request-id", "another")),
                *(("tracestate", "t"), ("traceparent", "p"), (TIMEOUT, "1000")),
            )
            return iter(pairs)

    metadata = Once()
    assert read_metadata(metadata) == CallMetadata(
        "abc", {"tracestate": "t", "traceparent": "p"}, 1000
    )
    assert metadata.walks == 1
    assert read_metadata(None) == CallMetadata("", {}, 0)
    for text in ("", "-5", "1e3", "9" * 8, "\u0661000"):
        assert read_metadata(((TIMEOUT, text),)).timeout_ms == 0
    for refused in ("", "a" * 129, b"abc", "a incident=1"):
        assert read_metadata((("x-request-id", refused),)).request_id == ""


@pytest.mark.parametrize(
    ("timeout_ms", "left_s", "waited_ms"),
    [
        *((1000, 0.75, 250), (1000, None, 0), (0, 0.75, 0)),
        (1000, 1.25, 0),  # gRPC rounds up
        (9_999_999, 0.75, 5000),  # no more is believed
    ],
)
def test_how_long_a_call_says_it_waited(
    timeout_ms: int, left_s: float | None, waited_ms: int
) -> None:
    assert client_wait_ns(timeout_ms, left_s) == waited_ms * 1_000_000
