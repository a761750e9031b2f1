"""The check of a call's token, before its request is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc

from logitsieve.api.errors import ServiceError
from logitsieve.server.metrics import UNKNOWN, Call, Metrics
from logitsieve.server.rpc.handlers import failed
from logitsieve.server.rpc.intake import HEALTH
from logitsieve.server.rpc.status import ending
from logitsieve.server.security.secrets import HEADER, Tokens

# Of a stream: raises a ServiceError once its token is no longer good.
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
