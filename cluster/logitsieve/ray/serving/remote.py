"""A shard whose replicas answer on Ray: the numbers and methods of `Shard`, with failover."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from time import monotonic, sleep
from typing import Any, ClassVar, NamedTuple, TypeVar

from logitsieve.api.errors import InvalidRequest, ShardUnavailable
from logitsieve.heads.sharded.shard import ids_of
from logitsieve.index.manifest import ShardOf
from logitsieve.ray.serving.metrics import ShardCalls
from logitsieve.ray.serving.replica import METHODS, Reply
from logitsieve.utils.deadline import time_left

T = TypeVar("T")

AGAIN_S = 0.02  # before another replica is asked, while Ray takes notice of a dead one


class Patience(NamedTuple):
    """How long an answer is waited for: so many seconds, and so much of what a request has left."""

    most_s: float
    share: float

    def deadline(self) -> float:
        """When, by `monotonic`, a call of this thread's computation that begins now is given up."""
        left = time_left()
        return monotonic() + (self.most_s if left is None else min(self.most_s, left * self.share))


class RemoteShard:
    """Rows `first` .. `first` + `rows` - 1 of W, by a handle of their replicas. Thread-safe.

    ShardUnavailable where none answers in time. If that took all of `patience`, then until one
    answers again a single call at a time waits for it, and the others are refused at once.
    """

    remote: ClassVar[bool] = True

    def __init__(
        self,
        handle: Any,
        own: ShardOf,
        size: tuple[int, int],
        patience: Patience,
        calls: ShardCalls,
    ) -> None:
        self.first, (self.rows, self.dim) = own.first, size
        self.norms = own.norm, own.bias
        self.handle, self.patience, self.calls = handle, patience, calls
        self._lock = Lock()
        self._silent_until: float | None = None  # when the call that waits for an answer gives up

    def begin(self, question: Callable[[Any], T]) -> Callable[[], T]:
        """Send a question, one call of a method; the result waits for its answer."""
        pending: Any = question(_Sender(self))
        return pending.result  # type: ignore[no-any-return]

    def warm(self) -> None:
        """Do nothing: a replica is warm before it is asked."""

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method not in METHODS:
            raise AttributeError(method)
        return lambda *args: self.send(method, args).result()

    def admit(self, deadline: float) -> bool:
        """Whether a call may be sent, which is given up at the deadline if it is."""
        with self._lock:
            if self._silent_until is None:
                return True
            if monotonic() < self._silent_until:
                return False
            self._silent_until = deadline
            return True

    def answers(self) -> None:
        self._silent_until = None

    def is_late(self, began: float) -> None:
        """Note that no replica answered a call until now."""
        if monotonic() - began >= self.patience.most_s:
            with self._lock:
                self._silent_until = self._silent_until or 0.0

    def send(self, method: str, args: tuple[Any, ...]) -> PendingCall:
        """A call that is on its way."""
        return PendingCall(self, method, own_part(self.first, self.rows, method, args))


def own_part(first: int, rows: int, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call without ids of other shards, which need not travel."""
    if method == "logits64":
        hidden, offsets, ids = args
        return hidden, *ids_of(first, rows, offsets, ids)
    return tuple(ids_of(first, rows, *arg) if type(arg) is tuple else arg for arg in args)


class _Sender:
    """The methods of a shard; what they return is on its way."""

    def __init__(self, shard: RemoteShard) -> None:
        self._shard = shard

    def __getattr__(self, method: str) -> Callable[..., PendingCall]:
        return lambda *args: self._shard.send(method, args)


class PendingCall:
    """A call of a shard's method; another replica is asked where one fails, until the deadline."""

    def __init__(self, shard: RemoteShard, method: str, args: tuple[Any, ...]) -> None:
        self._shard, self._message = shard, (method, args)
        self._began, self._deadline = monotonic(), shard.patience.deadline()
        if not shard.admit(self._deadline):
            shard.calls.count("silent")
            raise ShardUnavailable(shard.first, shard.rows)
        self._response = shard.handle.ask.remote(*self._message)

    def result(self) -> Any:
        """What the method returned. InvalidRequest as it raised it, ShardUnavailable."""
        reply = self._wait()
        if reply.refused is not None:
            raise InvalidRequest(*reply.refused)
        if reply.failed:
            raise RuntimeError(f"shard of row {self._shard.first}: {reply.failed}")
        return reply.value

    def _wait(self) -> Reply:
        shard = self._shard
        while True:
            left = self._deadline - monotonic()
            try:
                if left <= 0:
                    raise TimeoutError
                reply: Reply = self._response.result(timeout_s=left)
            except TimeoutError as error:
                with suppress(Exception):  # it may have ended meanwhile
                    self._response.cancel()
                shard.is_late(self._began)
                shard.calls.count("late")
                raise ShardUnavailable(shard.first, shard.rows) from error
            except Exception:  # whatever Ray says: this replica did not answer
                shard.calls.count("lost")
                sleep(min(AGAIN_S, max(0.0, self._deadline - monotonic())))
                self._response = shard.handle.ask.remote(*self._message)
                continue
            shard.answers()
            shard.calls.answered(reply.replica, monotonic() - self._began)
            return reply
