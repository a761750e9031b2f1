"""Calls held back while a server refuses some, by a clock of the test."""

from collections import deque

import pytest

from logitsieve.api.errors import Overloaded
from logitsieve.client.throttle import LEAST, Throttle

CAPACITY, PATIENCE_S = 1000.0, 0.05
REFUSAL = 0.8  # of the server's time for an answer


class Scene:
    """Even arrivals at a server with a queue, which refuses those who have waited too long."""

    def __init__(self) -> None:
        self.now = self.free_at = 0.0
        self.ends: deque[tuple[float, bool]] = deque()
        self.throttle = Throttle(lambda: self.now)

    def arrive(self, times: float, seconds: float) -> tuple[float, float]:
        """Return the shares of CAPACITY that were answered and refused."""
        counts = [0, 0]
        for _ in range(round(times * CAPACITY * seconds)):
            self.now += 1 / (times * CAPACITY)
            while self.ends and self.ends[0][0] <= self.now:
                self.throttle.leave(refused=self.ends.popleft()[1])
            try:
                self.throttle.enter()
            except Overloaded:
                continue
            begins = max(self.now, self.free_at)
            refused = begins - self.now > PATIENCE_S
            self.free_at = begins + (REFUSAL if refused else 1.0) / CAPACITY
            self.ends.append((self.free_at, refused))
            counts[refused] += 1
        return counts[0] / seconds / CAPACITY, counts[1] / seconds / CAPACITY


@pytest.mark.parametrize("times", [1.5, 2.0, 4.0, 20.0])
def test_a_flooded_server_answers_what_it_can(times: float) -> None:
    scene = Scene()
    scene.arrive(times, 3.0)
    answered, refused = scene.arrive(times, 5.0)
    assert answered >= 0.95
    assert refused <= 0.05


def test_calls_are_sent_again_soon_after_an_overload() -> None:
    scene = Scene()
    scene.arrive(20.0, 5.0)
    scene.arrive(0.9, 1.0)
    answered, refused = scene.arrive(0.9, 1.0)
    assert answered == pytest.approx(0.9)
    assert refused == 0.0


def test_nothing_is_held_back_before_a_refusal_nor_by_a_few_calls() -> None:
    throttle = Throttle(lambda: 0.0)
    for _ in range(10_000):
        throttle.enter()
    for number in range(10_000):
        throttle.leave(refused=number >= 10_000 - LEAST)
    assert throttle.in_flight == 0
    for _ in range(LEAST):
        throttle.enter()
    with pytest.raises(Overloaded, match=f"with {LEAST} in flight") as caught:
        throttle.enter()
    assert caught.value.retry_after_s > 0
