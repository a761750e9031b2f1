"""The token check of every call, before its request is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from logitsieve.api.errors import ServiceError
from logitsieve.server.metrics import UNKNOWN, Call, Metrics
from logitsieve.server.rpc.handlers import Context, failed
from logitsieve.server.rpc.intake import HEALTH
from logitsieve.server.rpc.status import abort, ending, guarded
from logitsieve.server.security.secrets import HEADER, Tokens

LASTING = "/logitsieve.v1.Decoder/Decode"  # as long as a client likes
RECHECK_S = 1.0  # between checks of a silent stream's token

Check = Callable[[], None]  # ServiceError once a token is no longer good
Stream = Callable[[Any, Context], Awaitable[None]]


class Access(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the library is untyped
    """Passes health checks, and calls with a token of the port's scope.

    Once its token is no longer in the file, a Decode stream ends with the next message, or within
    `recheck_s` seconds.
    """

    def __init__(
        self, tokens: Tokens, scope: str, metrics: Metrics, recheck_s: float = RECHECK_S
    ) -> None:
        self._tokens, self._scope, self._metrics = tokens, scope, metrics
        self._recheck_s = recheck_s

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
        if handler is not None and details.method == LASTING:
            return self._checked(handler.stream_stream, check)
        return handler

    def _checked(self, stream: Stream, check: Check) -> grpc.RpcMethodHandler:
        @guarded
        async def checked(messages: object, context: Context) -> None:
            checked_context = _CheckedContext(context, check)
            running = asyncio.ensure_future(stream(messages, checked_context))
            try:
                while not running.done() and checked_context.refused is None:
                    await asyncio.wait((running,), timeout=self._recheck_s)
                    checked_context.check()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            if (refused := checked_context.refused) is not None:
                await abort(failed(refused, Call("Decode"), self._metrics), context)
            await running

        return grpc.stream_stream_rpc_method_handler(checked)


class _CheckedContext:
    """A stream's context: reads messages while the token is good."""

    def __init__(self, context: Context, check: Check) -> None:
        self._context, self._check = context, check
        self.refused: ServiceError | None = None

    def check(self) -> None:
        try:
            self._check()
        except ServiceError as error:
            self.refused = self.refused or error

    async def read(self) -> Any:
        message = await self._context.read()
        self.check()
        if self.refused is not None:
            raise self.refused
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
