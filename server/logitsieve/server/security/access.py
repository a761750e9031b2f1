"""Who may call: the one place where tokens are asked for, before a request is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc

from logitsieve.api.errors import ServiceError
from logitsieve.server.metrics import UNKNOWN, Call, Metrics
from logitsieve.server.rpc.handlers import Context, abort, settle
from logitsieve.server.rpc.status import Status
from logitsieve.server.security.tokens import HEADER, Tokens

# Asked by load balancers and kubelets, which hold no token; it names models, nothing else.
OPEN = "/grpc.health.v1.Health/"
# The one method that is answered for as long as a client likes.
LASTING = "/logitsieve.v1.Decoder/Decode"

# A stream on which nothing is sent is asked for its token this often.
AGAIN_S = 1.0

Check = Callable[[], None]  # ServiceError where a token is not good any more
Stream = Callable[[Any, Context], Awaitable[None]]


class Access(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the library is untyped
    """Lets a port's calls pass that bring a token of the port's scope, and health checks.

    A Decode stream needs one for as long as it is open: it ends with the next message, or within
    `again_s` seconds, of when its token is taken from the file.
    """

    def __init__(
        self, tokens: Tokens, scope: str, metrics: Metrics, again_s: float = AGAIN_S
    ) -> None:
        self._tokens, self._scope, self._metrics = tokens, scope, metrics
        self._again_s = again_s

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> grpc.RpcMethodHandler | None:
        """The handler of the method, or one that refuses."""
        handler: grpc.RpcMethodHandler | None = await continuation(details)
        if details.method.startswith(OPEN):
            return handler
        header = _header(details.invocation_metadata)

        def check() -> None:
            self._tokens.check(header, self._scope)

        try:
            check()
        except ServiceError as error:
            # What clients call is a label only where there is such a method.
            rpc = UNKNOWN if handler is None else details.method.rpartition("/")[2]
            return self._refusal(error, rpc)
        if handler is not None and details.method == LASTING:
            return self._checked(handler.stream_stream, check)
        return handler

    def _refusal(self, error: ServiceError, rpc: str) -> grpc.RpcMethodHandler:
        async def refuse(messages: object, context: Context) -> None:
            await self._end(error, rpc, context)

        # As a stream, so that not a byte of the request is read.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _checked(self, stream: Stream, check: Check) -> grpc.RpcMethodHandler:
        async def checked(messages: object, context: Context) -> None:
            watched = _Checked(context, check)
            running = asyncio.ensure_future(stream(messages, watched))
            try:
                while not running.done() and watched.refused is None:
                    await asyncio.wait((running,), timeout=self._again_s)
                    watched.ask()
            finally:
                await _cancel(running)
            if watched.refused is not None:
                await self._end(watched.refused, LASTING.rpartition("/")[2], context)
            await running

        return grpc.stream_stream_rpc_method_handler(checked)

    async def _end(self, error: ServiceError, rpc: str, context: Context) -> None:
        async def refused() -> NoReturn:
            raise error

        if isinstance(status := await settle(refused(), Call(rpc), self._metrics), Status):
            await abort(status, context)


class _Checked:
    """The context of a stream whose messages are only read with a token that is good."""

    def __init__(self, context: Context, check: Check) -> None:
        self._context, self._check = context, check
        self.refused: ServiceError | None = None  # why the stream is to end

    def ask(self) -> None:
        """Look again whether the token is good."""
        try:
            self._check()
        except ServiceError as error:
            self.refused = self.refused or error

    async def read(self) -> Any:
        """The next message, or why there are no more."""
        message = await self._context.read()
        self.ask()
        if self.refused is not None:
            raise self.refused
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


async def _cancel(task: asyncio.Future[None]) -> None:
    """Cancel it unless it is done, and wait until it is."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # told where the task is awaited, if anybody is to be told


def _header(metadata: Any) -> str:
    return next((str(value) for key, value in metadata or () if key == HEADER), "")
