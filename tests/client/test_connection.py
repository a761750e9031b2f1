from collections import deque
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest, Overloaded
from logitsieve.client import AdminClient, DecoderClient, Tls
from logitsieve.client.connection import LEAST, MARK, Throttle, to_metadata
from logitsieve.v1 import decoder_pb2 as pb
from tests.refusals import refused

CAPACITY, TIMEOUT_S, PATIENCE = 1000.0, 0.1, 0.5
REFUSAL = 0.8  # of the server's time for an answer


class Scene:
    """Even arrivals at a server with a queue, which refuses those who have waited too long."""

    def __init__(self) -> None:
        self.now = self.free_at = 0.0
        self.ends: deque[tuple[float, float]] = deque()  # of calls, and their waits
        self.throttle = Throttle(lambda: self.now)

    def arrive(self, times: float, seconds: float) -> tuple[float, float]:
        """Return the shares of CAPACITY that were answered and refused."""
        counts = [0, 0]
        for _ in range(round(times * CAPACITY * seconds)):
            self.now += 1 / (times * CAPACITY)
            while self.ends and self.ends[0][0] <= self.now:
                self.throttle.leave(self.ends.popleft()[1] > MARK * TIMEOUT_S)
            try:
                self.throttle.enter()
            except Overloaded:
                continue
            begins = max(self.now, self.free_at)
            refused = begins - self.now > PATIENCE * TIMEOUT_S
            self.free_at = begins + (REFUSAL if refused else 1.0) / CAPACITY
            self.ends.append((self.free_at, begins - self.now))
            counts[refused] += 1
        return counts[0] / seconds / CAPACITY, counts[1] / seconds / CAPACITY


@pytest.mark.parametrize("times", [1.5, 2.0, 4.0, 20.0])
def test_a_flooded_server_answers_what_it_can(times: float) -> None:
    scene = Scene()
    scene.arrive(times, 3.0)
    answered, refused = scene.arrive(times, 5.0)
    assert answered >= 0.95
    assert refused == 0.0


def test_calls_are_sent_again_soon_after_an_overload() -> None:
    scene = Scene()
    scene.arrive(20.0, 5.0)
    scene.arrive(0.9, 1.0)
    answered, refused = scene.arrive(0.9, 1.0)
    assert answered == pytest.approx(0.9)
    assert refused == 0.0


def test_nothing_is_held_back_before_a_long_wait_nor_by_a_few_calls() -> None:
    throttle = Throttle(lambda: 0.0)
    for _ in range(10_000):
        throttle.enter()
    for number in range(10_000):
        throttle.leave(number >= 10_000 - LEAST)
    assert throttle.in_flight == 0
    for _ in range(LEAST):
        throttle.enter()
    with pytest.raises(Overloaded, match=f"with {LEAST} in flight") as caught:
        throttle.enter()
    assert caught.value.retry_after_s > 0


@pytest.mark.parametrize(("waited_ms", "crowded"), [(250, False), (251, True)])
def test_an_answer_that_waited_long_is_a_sign(waited_ms: int, crowded: bool) -> None:
    answer = pb.Answer(queue_ns=waited_ms * 1_000_000)
    with DecoderClient("localhost:1", timeout_s=1.0) as client:
        for response in (pb.ListModelsResponse(), pb.TopKResponse(answer=answer)):
            client._call(lambda _, response=response, **told: response, None, lambda read: read)
        assert (client._throttle.limit < inf) == crowded


KEY = "a-token-of-readers"


HERE = "localhost:50051 127.0.0.1:1 [::1]:1 dns:///localhost:1 ipv4:127.0.0.1:1,127.0.0.1:2"
ELSEWHERE = "example.org:50051 10.0.0.1:1 ipv4:127.0.0.1:1,10.0.0.1:2 dns:///example.org:1"


@pytest.mark.parametrize("address", [*HERE.split(), "ipv6:[::1]:1", "unix:/run/socket"])
def test_a_token_may_stay_on_this_machine(address: str) -> None:
    assert to_metadata(KEY, address, None) == (("authorization", f"Bearer {KEY}"),)


@pytest.mark.parametrize(
    "address", [*ELSEWHERE.split(), "dns://8.8.8.8/localhost:1", "localhost.example.org:1"]
)
def test_a_token_never_leaves_it_in_the_clear(address: str) -> None:
    with refused("tls"):
        DecoderClient(address, api_key=KEY)
    assert to_metadata(KEY, address, Tls())
    assert to_metadata("", address, None) == ()


NAN = float("nan")
REFUSED: dict[str, list[dict[str, Any]]] = {
    "api_key": [{"api_key": key} for key in ("two words", "new\nline", "\u65e5\u672c")],
    "tls.ca": [{"tls": Tls(ca="absent")}],
    "tls.cert": [{"tls": Tls(key="absent")}],
    "tls.key": [{"tls": Tls(cert=Path("absent"))}, {"tls": Tls(cert="absent", key="absent")}],
    "keepalive_s": [{"keepalive_s": seconds} for seconds in (0, 9.9, -1, NAN)],
    "timeout_s": [
        {"timeout_s": seconds} for seconds in (-1, 0, NAN, inf, 1e12, 3601, True, "5", None)
    ],
    "address": [{"address": ["10.0.0.1:1", "10.0.0.2:2"]}],
}
ALLOWED = {"timeout_s": "at most 3600", "address": "several as ipv4:"}


@pytest.mark.parametrize("field", REFUSED)
def test_options_that_are_refused(field: str) -> None:
    for options in REFUSED[field]:
        with refused(field, ALLOWED.get(field)):
            DecoderClient(**{"address": "127.0.0.1:1"} | options)


def test_a_token_is_not_told_and_times_have_their_ranges() -> None:
    with pytest.raises(InvalidRequest) as caught:
        DecoderClient("localhost:1", api_key="two words")
    assert "two words" not in str(caught.value)
    for timeout_s in (0.01, 3600, np.float32(2)):
        with DecoderClient("127.0.0.1:1", timeout_s=timeout_s) as client:  # type: ignore[arg-type]
            assert client.timeout_s == pytest.approx(float(timeout_s))
    for drain_s in (-1.0, 3601.0, NAN):
        with AdminClient("127.0.0.1:1") as admin, refused("drain_s"):
            admin.unload("demo", 1, drain_s)
