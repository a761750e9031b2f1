"""The check of a call's API key, before it is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc

from logitsieve.api.errors import ServiceError
from logitsieve.server.metrics import UNKNOWN, Call, Metrics
from logitsieve.server.rpc.handlers import failed
from logitsieve.server.rpc.health import HEALTH
from logitsieve.server.rpc.status import ending, to_status
from logitsieve.server.security import HEADER, ApiKeys

# Raises a ServiceError once the key of a stream is no longer valid.
CHECK: ContextVar[Callable[[], None]] = ContextVar("check", default=lambda: None)


class Access(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the library is untyped
    """Passes health checks, and calls with a key of the port's scope."""

    def __init__(self, api_keys: ApiKeys, scope: str, metrics: Metrics) -> None:
        self._api_keys, self._scope, self._metrics = api_keys, scope, metrics

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> grpc.RpcMethodHandler | None:
        try:
            handler: grpc.RpcMethodHandler | None = await continuation(details)
            if details.method.startswith(HEALTH):
                return handler
            return self._admit(handler, details)
        except Exception as error:  # gRPC would send its text to the client
            return ending(to_status(error))

    def _admit(self, handler: grpc.RpcMethodHandler | None, details: Any) -> Any:
        metadata = details.invocation_metadata or ()
        header = next((str(value) for key, value in metadata if key == HEADER), "")
        check = partial(self._api_keys.check, header, self._scope)
        try:
            check()
        except ServiceError as error:
            # A method name is a label only if the method exists.
            rpc = UNKNOWN if handler is None else details.method.rpartition("/")[2]
            return ending(failed(error, Call(rpc), self._metrics))
        CHECK.set(check)
        return handler
