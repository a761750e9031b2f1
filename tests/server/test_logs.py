from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from logitsieve.server.logs import (
    FAILED,
    MAX_ID,
    PER_SECOND,
    FewFailures,
    configure,
    event,
    request_id,
)
from logitsieve.server.status import to_status
from tests.server.asking import GOOD, changed, error_of
from tests.server.running import WAIT_S, Running

log = logging.getLogger("logitsieve.tests")
PACKAGE = logging.getLogger("logitsieve")


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What is logged as JSON, with the package's logger as it was afterwards."""
    before = PACKAGE.handlers[:], PACKAGE.level, PACKAGE.propagate
    stream = io.StringIO()
    configure("json", stream)
    yield stream
    PACKAGE.handlers[:], PACKAGE.level, PACKAGE.propagate = before


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line_of_json(written: io.StringIO) -> None:
    event(log, logging.WARNING, "guard", "AUTO moves\nto exact", model="demo", version="1")
    (line,) = lines(written)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "event": "guard",
        "message": "AUTO moves\nto exact",
        "model": "demo",
        "version": "1",
    }


def test_an_incident_has_its_id_and_its_traceback(written: io.StringIO) -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        status = to_status(error)
    (line,) = lines(written)
    assert (line["event"], line["incident"]) == ("incident", status.error.incident)
    assert "ValueError: why" in line["exception"]


def test_text_is_the_message_alone(written: io.StringIO) -> None:
    configure("text", written)
    event(log, logging.INFO, "start", "gRPC at 127.0.0.1:1", grpc="127.0.0.1:1")
    assert written.getvalue() == "gRPC at 127.0.0.1:1\n"


def test_a_flood_of_failures_is_cut_off_and_counted() -> None:
    now, shown = [0.0], 0
    few = FewFailures(lambda: now[0])
    for _ in range(PER_SECOND + 5):
        shown += few.filter(logging.makeLogRecord({"event": FAILED}))
    assert shown == PER_SECOND
    assert few.filter(logging.makeLogRecord({"event": "guard"}))
    now[0] = 1.0
    record = logging.makeLogRecord({"event": FAILED, "fields": {"rpc": "TopK"}})
    assert few.filter(record)
    assert record.__dict__["fields"] == {"rpc": "TopK", "not_shown": 5}


def test_only_ids_that_can_be_repeated_are_taken() -> None:
    assert request_id((("user-agent", "x"), ("x-request-id", "abc"))) == "abc"
    for refused in ("", "a" * (MAX_ID + 1), b"abc"):
        assert request_id((("x-request-id", refused),)) == ""
    assert request_id(None) == ""


def call(server: Running, rpc: str, message: bytes, own: str = "") -> tuple[Any, grpc.Call]:
    metadata = (("x-request-id", own),) if own else ()
    method = server.channel.unary_unary(f"/logitsieve.v1.Decoder/{rpc}")
    found, call = method.with_call(message, timeout=WAIT_S, metadata=metadata)
    return found, call


def trailer(call: Any) -> str:
    return str(dict(call.trailing_metadata()).get("x-request-id", ""))


def test_a_request_has_its_id_back_and_leaves_no_line(
    server: Running, written: io.StringIO
) -> None:
    message = GOOD["TopK"].SerializeToString()
    assert trailer(call(server, "TopK", message, "mine")[1]) == "mine"
    assert trailer(call(server, "TopK", message)[1]) == ""
    assert written.getvalue() == ""


@pytest.mark.parametrize("own", ["", "mine"])
def test_a_failed_request_is_found_by_its_id(
    server: Running, written: io.StringIO, own: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(server, "TopK", changed("TopK", k=100000).SerializeToString(), own)
    (line,) = lines(written)
    assert line["request_id"] == trailer(caught.value)
    assert line["request_id"] == own or not own
    about = {name: line[name] for name in ("event", "rpc", "model", "code", "field")}
    assert about == {
        "event": FAILED,
        "rpc": "TopK",
        "model": "demo",
        "code": "INVALID_ARGUMENT",
        "field": "k",
    }
    assert error_of(caught.value).field == "k"
    assert "100000" not in written.getvalue()


def test_a_failed_message_of_a_stream_is_found_by_the_streams_id(
    server: Running, written: io.StringIO
) -> None:
    stream = server.channel.stream_stream("/logitsieve.v1.Decoder/Decode")
    replies = stream(iter([b"\xff"]), timeout=WAIT_S, metadata=(("x-request-id", "mine"),))
    assert len(list(replies)) == 1
    assert trailer(replies) == "mine"
    (line,) = lines(written)
    assert (line["rpc"], line["request_id"]) == ("Decode", "mine")
