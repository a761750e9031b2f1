import logging
from collections.abc import Iterator

import pytest
from grpc import StatusCode

from logitsieve.api.errors import (
    DeviceExhausted,
    DeviceLost,
    InvalidRequest,
    LogitsieveError,
    ModelNotFound,
    Overloaded,
)
from logitsieve.server.rpc.status import CODES, EXHAUSTED_RETRY_MS, MAX_TEXT, PUSHBACK, to_status
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import TRAILER


def tree(kind: type[LogitsieveError]) -> Iterator[type[LogitsieveError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


def test_the_table_is_total_and_a_wrong_field_is_named() -> None:
    ours = {kind for kind in tree(LogitsieveError) if kind.__module__ == LogitsieveError.__module__}
    assert CODES.keys() == ours
    assert StatusCode.UNKNOWN not in CODES.values()
    code, error = error_of(InvalidRequest("k", 0, "1 to 5"))
    assert code is StatusCode.INVALID_ARGUMENT
    assert (error.code, error.field, error.message) == (3, "k", "k: got 0, allowed: 1 to 5")


def error_of(error: Exception) -> tuple[StatusCode, pb.Error]:
    status = to_status(error)
    trailer = dict(status.trailer)[TRAILER]
    assert isinstance(trailer, bytes)
    return status.code, pb.Error.FromString(trailer)


def test_a_gpu_without_memory_is_an_overload_and_a_lost_one_is_not() -> None:
    status = to_status(DeviceExhausted("cuda:1"))
    assert status.code is StatusCode.RESOURCE_EXHAUSTED
    assert dict(status.trailer)[PUSHBACK] == str(EXHAUSTED_RETRY_MS)
    assert status.error.message == "cuda:1: out of memory"
    assert to_status(DeviceLost("cuda:1", "why")).code is StatusCode.UNAVAILABLE
    status = to_status(Overloaded("full", 0.05))  # says when to come back
    assert ("grpc-retry-pushback-ms", "50") in status.trailer
    assert status.error.retry_after_ms == 50


@pytest.mark.parametrize("error", [RuntimeError("secret"), KeyError("secret"), MemoryError()])
def test_the_unforeseen_is_an_incident(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        code, reply = error_of(error)
    assert code is StatusCode.INTERNAL
    assert reply.incident
    assert reply.incident in reply.message
    assert "secret" not in reply.message
    [record] = caplog.records
    assert reply.incident in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize("text", ["x" * 100_000, "日本語" * 10_000, "\ud800", "\x00\n"])
def test_what_clients_send_never_outgrows_a_trailer(text: str) -> None:
    error = error_of(ModelNotFound(text, text))[1]
    assert len(error.message) <= MAX_TEXT
    assert len(error.field) <= MAX_TEXT
    assert error.message.isascii()
