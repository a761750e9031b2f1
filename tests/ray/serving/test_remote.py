"""A decoder over replicas that fail, are late, or refuse: handles and clocks are made up."""

from collections.abc import Iterable
from time import monotonic
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable, InvalidRequest, Unavailable
from logitsieve.ray.remote import START_S, RayShardDecoder
from logitsieve.utils.deadline import ending_by

HIDDEN = np.zeros((1, 8), np.float32)


class Handle:
    """Calls end as told, one after the other, each after the seconds that it takes."""

    def __init__(self, *ends: tuple[float, Any]) -> None:
        self.ends, self.now = list(ends), 0.0
        self.asked: list[tuple[Any, ...]] = []
        self.cancelled = 0
        self.ask = self.digest = self

    def remote(self, *question: Any) -> "Call":
        self.asked.append(question)
        return Call(self, *self.ends.pop(0))

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


class Call:
    def __init__(self, handle: Handle, seconds: float, end: Any) -> None:
        self._handle, self._seconds, self._end = handle, seconds, end

    def result(self, timeout_s: float) -> Any:
        self._handle.now += min(self._seconds, timeout_s)
        if self._seconds > timeout_s:
            raise TimeoutError
        if isinstance(self._end, RuntimeError):
            raise self._end
        return self._end

    def cancel(self) -> None:
        self._handle.cancelled += 1


REPLY: Any = object()
LOST = RuntimeError("the actor died")


def decoder_of(handle: Handle, most_s: float = 1.0) -> RayShardDecoder:
    return RayShardDecoder(handle, "digest", most_s, clock=handle.clock, pause=handle.pause)


def test_a_call_carries_its_method_and_the_seconds_left() -> None:
    handle = Handle((0.1, REPLY))
    assert decoder_of(handle).topk(HIDDEN, 5, head="full") == REPLY
    assert handle.asked == [("topk", (HIDDEN, 5), {"head": "full"}, 1.0)]
    with ending_by(monotonic() + 500):
        handle.ends = [(0.1, REPLY)]
        decoder_of(handle, 1000.0).sample(HIDDEN)
    assert 400 < handle.asked[-1][3] <= 500


def test_another_replica_is_asked_where_one_dies_and_none_after_an_error() -> None:
    handle = Handle((0.1, LOST), (0.0, LOST), (0.1, REPLY))
    assert decoder_of(handle).score(HIDDEN, [[1]]) == REPLY
    lefts = [question[3] for question in handle.asked]
    assert lefts == sorted(lefts, reverse=True)
    assert len(set(lefts)) == 3
    handle = Handle((0.1, InvalidRequest("hidden_states", "nan", "finite numbers")))
    with pytest.raises(InvalidRequest, match="hidden_states: got nan, allowed: finite numbers"):
        decoder_of(handle).topk(HIDDEN, 5)
    assert len(handle.asked) == 1


@pytest.mark.parametrize("ends", [[(9.0, "late")], [(0.3, LOST)] * 5])
def test_a_shard_that_does_not_answer_is_named(ends: Iterable[tuple[float, Any]]) -> None:
    handle = Handle(*ends)
    with pytest.raises(Unavailable, match=r"shard digest: no replica answered in 1 s"):
        decoder_of(handle).topk(HIDDEN, 5)
    assert handle.now == pytest.approx(1.0)
    assert handle.cancelled == 1


def test_a_version_is_warm_when_its_replicas_have_its_index() -> None:
    handle = Handle((START_S / 2, LOST), (1.0, "digest"))
    decoder_of(handle).warm()
    with pytest.raises(IndexUnreadable, match="another"):
        decoder_of(Handle((0.0, "another"))).warm()
    with pytest.raises(Unavailable):
        decoder_of(Handle((START_S + 1, "digest"))).warm()
