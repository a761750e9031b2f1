"""The bytes of requests and replies in memory: calls beyond a number of them wait, unread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc

from logitsieve.api.errors import Overloaded
from logitsieve.server.rpc.status import ending

COPIES = 2  # of a message: gRPC's bytes and ours, or arrays
MOST_WAITING = 1000  # calls that wait to be read; gRPC has the first 64 KiB or so of each
RETRY_S = 0.1
HEALTH = "/grpc.health.v1.Health/"


class Intake(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the library is untyped
    """Lets calls be read while the messages in memory, and those to come, fit `most` bytes.

    A unary call counts as the `longest` message until it has been read; the oldest of those that
    wait is the next. A message of a stream counts once it has been read. One always fits. With
    each counts the largest `reply`, until it is known. A byte counts as COPIES.
    """

    def __init__(self, most: int, longest: int, reply: int = 0) -> None:
        self._most, self._longest, self._reply = most // COPIES, longest, reply
        self._held: dict[asyncio.Task[Any], int] = {}
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.bytes = 0
        self.calls = 0  # and messages of streams, that wait here or have been let in

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> grpc.RpcMethodHandler | None:
        try:
            handler: grpc.RpcMethodHandler | None = await continuation(details)
            if handler is None or details.method.startswith(HEALTH):
                return handler
            CURRENT.set(self)
            if not handler.request_streaming:
                if len(self._waiting) >= MOST_WAITING:
                    raise Overloaded(f"{MOST_WAITING} calls wait to be read", RETRY_S)
                call = _call()  # gRPC makes a task of each, which ends with it
                await self.enter(self._longest)
                call.add_done_callback(self.leave)
        except Exception as error:  # in an interceptor behind it, too
            return ending(error)
        return handler

    async def enter(self, size: int) -> None:
        """Wait until a message of `size` bytes fits, then count it until this task `leave`s."""
        call, size = _call(), size + self._reply
        fits = not self._waiting and self._fits(size)
        self.calls += 1
        if fits:
            self.bytes += size
            self._held[call] = size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn  # `leave` has counted it by then
        except BaseException:
            self.calls -= 1
            self._free(0 if turn.cancelled() else size)
            raise
        self._held[call] = size

    def leave(self, call: asyncio.Task[Any]) -> None:
        self.calls -= 1
        self._free(self._held.pop(call))

    def has_read(self, size: int) -> None:
        self._count(size + self._reply)

    def expect(self, reply: int) -> None:
        self._count(self._held[_call()] - self._reply + min(reply, self._reply))

    def _count(self, size: int) -> None:
        call = _call()
        rest, self._held[call] = self._held[call] - size, size
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


def expect(reply: int) -> None:
    """Count this task's call with a reply of `reply` bytes."""
    if (intake := CURRENT.get()) is not None:
        intake.expect(reply)


def _call() -> asyncio.Task[Any]:
    call = asyncio.current_task()
    assert call is not None, "called by gRPC"
    return call
