"""The bytes of requests in memory: calls beyond a number of them wait, unread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc

HEALTH = "/grpc.health.v1.Health/"


class Intake(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the library is untyped
    """Lets calls be read while the messages in memory, and those to come, fit `most` bytes.

    A unary call counts as the `longest` message until it has been read; the oldest of those that
    wait is the next. A message of a stream counts once it has been read. One always fits.
    """

    def __init__(self, most: int, longest: int) -> None:
        self._most, self._longest = most, longest
        self._of_calls: dict[asyncio.Task[Any], int] = {}
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.bytes = 0
        self.calls = 0  # and messages of streams, that wait here or have been let in

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> grpc.RpcMethodHandler | None:
        handler: grpc.RpcMethodHandler | None = await continuation(details)
        if handler is None or details.method.startswith(HEALTH):
            return handler
        CURRENT.set(self)
        if not handler.request_streaming:
            await self.enter(self._longest)
            call = _call()  # gRPC makes a task of each, which ends with it
            self._of_calls[call] = self._longest
            call.add_done_callback(lambda call: self.leave(self._of_calls.pop(call)))
        return handler

    async def enter(self, size: int) -> None:
        """Wait until a message of `size` bytes fits, then count it until it `leave`s."""
        self.calls += 1
        if not self._waiting and self._fits(size):
            self.bytes += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn  # `leave` has counted it by then
        except asyncio.CancelledError:
            self.leave(0 if turn.cancelled() else size)
            raise

    def leave(self, size: int) -> None:
        self.calls -= 1
        self._free(size)

    def has_read(self, size: int) -> None:
        call = _call()
        rest, self._of_calls[call] = self._of_calls[call] - size, size
        self._free(rest)

    def _free(self, size: int) -> None:
        self.bytes -= size
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.bytes += size
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= self._most


CURRENT: ContextVar[Intake | None] = ContextVar("intake", default=None)


def has_read(size: int) -> None:
    """Count this unary call as the message of `size` bytes that it has."""
    if (intake := CURRENT.get()) is not None:
        intake.has_read(size)


def _call() -> asyncio.Task[Any]:
    call = asyncio.current_task()
    assert call is not None, "called by gRPC"
    return call
