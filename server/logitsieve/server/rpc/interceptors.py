"""The checks before a call is read: its token, and a limit on bytes in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from logitsieve.api.errors import Overloaded, ServiceError
from logitsieve.server.metrics import UNKNOWN, Call, Metrics
from logitsieve.server.rpc.handlers import failed
from logitsieve.server.rpc.status import ending, to_status
from logitsieve.server.security import HEADER, Tokens

COPIES = 2  # of a message: gRPC's bytes, and ours or arrays
MOST_WAITING = 1000  # calls that wait to be read; gRPC holds about 64 KiB of each
RETRY_S = 0.1
HEALTH = "/grpc.health.v1.Health/"


class Intake(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the library is untyped
    """Lets calls be read, oldest first, while messages fit `most` bytes; one always fits.

    Others wait, unread. A unary call counts as the `longest` message until it has been read, a
    message of a stream from then on, each with the largest `reply` until it is known. A byte
    counts as COPIES.
    """

    def __init__(self, most: int, longest: int, reply: int = 0) -> None:
        self._most, self._longest, self._reply = most // COPIES, longest, reply
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.bytes = 0
        self.calls = 0  # and messages of streams, waiting or let in

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> grpc.RpcMethodHandler | None:
        try:
            handler: grpc.RpcMethodHandler | None = await continuation(details)
            if handler is None or details.method.startswith(HEALTH):
                return handler
            if handler.request_streaming:
                INTAKE.set(self)
                return handler
            if len(self._waiting) >= MOST_WAITING:
                raise Overloaded(f"{MOST_WAITING} calls wait to be read", RETRY_S)
            held = await self.enter(self._longest)
            task = asyncio.current_task()  # gRPC makes one for each call
            assert task is not None
            task.add_done_callback(held.leave)
        except Exception as error:  # in an interceptor behind it, too
            return ending(to_status(error))
        return handler

    async def enter(self, size: int) -> Held:
        """Wait until a message fits, then count it until it `leave`s."""
        size += self._reply
        fits = not self._waiting and self._fits(size)
        self.calls += 1
        if fits:
            self.bytes += size
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn  # `free` has counted it by then
            except BaseException:
                self.calls -= 1
                self.free(0 if turn.cancelled() else size)
                raise
        HELD.set(held := Held(self, size))
        return held

    def free(self, size: int) -> None:
        self.bytes -= size
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.bytes += size
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= self._most


@dataclass(slots=True, eq=False)
class Held:
    """Bytes that an Intake counts for a call or a message of a stream."""

    intake: Intake
    size: int

    def shrink(self, size: int) -> None:
        if (rest := self.size - size) > 0:
            self.size = size
            self.intake.free(rest)

    def leave(self, call: object = None) -> None:
        self.intake.calls -= 1
        self.intake.free(self.size)


INTAKE: ContextVar[Intake | None] = ContextVar("intake", default=None)  # of a stream
HELD: ContextVar[Held | None] = ContextVar("held", default=None)  # of this task


def expect(size: int) -> None:
    """Count this task's message and its reply as `size` bytes."""
    if (held := HELD.get()) is not None:
        held.shrink(size)


# Raises a ServiceError once the token of a stream is no longer valid.
CHECK: ContextVar[Callable[[], None]] = ContextVar("check", default=lambda: None)


class Access(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the library is untyped
    """Passes health checks, and calls with a token of the port's scope."""

    def __init__(self, tokens: Tokens, scope: str, metrics: Metrics) -> None:
        self._tokens, self._scope, self._metrics = tokens, scope, metrics

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> grpc.RpcMethodHandler | None:
        handler: grpc.RpcMethodHandler | None = await continuation(details)
        if details.method.startswith(HEALTH):
            return handler
        metadata = details.invocation_metadata or ()
        header = next((str(value) for key, value in metadata if key == HEADER), "")
        check = partial(self._tokens.check, header, self._scope)
        try:
            check()
        except ServiceError as error:
            # A method name is a label only if the method exists.
            rpc = UNKNOWN if handler is None else details.method.rpartition("/")[2]
            return ending(failed(error, Call(rpc), self._metrics))
        CHECK.set(check)
        return handler
