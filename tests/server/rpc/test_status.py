from collections.abc import Iterator

import pytest
from grpc import StatusCode

from logitsieve.api.errors import InvalidRequest, LogitsieveError, ModelNotFound
from logitsieve.server.rpc.status import CODES, MAX_TEXT, to_status
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


@pytest.mark.parametrize("text", ["x" * 100_000, "日本語" * 10_000, "\ud800", "\x00\n"])
def test_what_clients_send_never_outgrows_a_trailer(text: str) -> None:
    error = error_of(ModelNotFound(text, text))[1]
    assert len(error.message) <= MAX_TEXT
    assert len(error.field) <= MAX_TEXT
    assert error.message.isascii()
