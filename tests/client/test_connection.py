from collections import deque
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest, Overloaded
from logitsieve.client import DecoderClient, Tls
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


TOKEN = "a-token-of-readers"


HERE = "localhost:50051 127.0.0.1:1 [::1]:1 dns:///localhost:1 ipv4:127.0.0.1:1,127.0.0.1:2"
ELSEWHERE = "example.org:50051 10.0.0.1:1 ipv4:127.0.0.1:1,10.0.0.1:2 dns:///example.org:1"


@pytest.mark.parametrize("address", [*HERE.split(), "ipv6:[::1]:1", "unix:/run/socket"])
def test_a_token_may_stay_on_this_machine(address: str) -> None:
    assert to_metadata(TOKEN, address, None) == (("authorization", f"Bearer {TOKEN}"),)


@pytest.mark.parametrize(
    "address", [*ELSEWHERE.split(), "dns://8.8.8.8/localhost:1", "localhost.example.org:1"]
)
def test_a_token_never_leaves_it_in_the_clear(address: str) -> None:
    with refused("tls"):
        DecoderClient(address, token=TOKEN)
    assert to_metadata(TOKEN, address, Tls())
    assert to_metadata("", address, None) == ()


@pytest.mark.parametrize("token", ["two words", "new\nline", "\u65e5\u672c"])
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DecoderClient("localhost:1", token=token)
    assert caught.value.field == "token"
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    ("tls", "field"),
    [
        (Tls(ca="absent"), "tls.ca"),
        (Tls(cert=Path("absent")), "tls.key"),
        (Tls(key="absent"), "tls.cert"),
        (Tls(cert="absent", key="absent"), "tls.key"),
    ],
)
def test_files_that_are_not_there(tls: Tls, field: str) -> None:
    with refused(field):
        DecoderClient("localhost:1", tls=tls)


def test_a_timeout_is_a_positive_number_of_seconds_and_a_list_is_no_address() -> None:
    wrong: Any
    for wrong in (-1, 0, float("nan"), float("inf"), 1e12, 3601, True, "5", None):
        with refused("timeout_s", "at most 3600"):
            DecoderClient("127.0.0.1:1", timeout_s=wrong)
    for timeout_s in (0.01, 3600, np.float32(2)):
        with DecoderClient("127.0.0.1:1", timeout_s=timeout_s) as client:  # type: ignore[arg-type]
            assert client.timeout_s == pytest.approx(float(timeout_s))
    with refused("address", "several as ipv4:"):
        DecoderClient(["10.0.0.1:1", "10.0.0.2:2"])  # type: ignore[arg-type]
