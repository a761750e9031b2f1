"""The metadata that a client may send with a call."""

import pytest

from logitsieve.server.rpc.metadata import MAX_ID, Told, told, waited_ns
from logitsieve.v1.rpcs import TIMEOUT


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
