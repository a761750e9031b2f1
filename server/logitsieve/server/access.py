"""Who may call: the one place where tokens are asked for, before a request is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc

from logitsieve.server.metrics import UNKNOWN, Call, Metrics
from logitsieve.server.rpc import Context, abort, settle
from logitsieve.server.status import Status
from logitsieve.server.tokens import HEADER, Tokens
from logitsieve.types.errors import ServiceError

# Asked by load balancers and kubelets, which hold no token; it names models, nothing else.
OPEN = "/grpc.health.v1.Health/"


class Access(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the library is untyped
    """Lets a port's calls pass that bring a token of the port's scope, and health checks."""

    def __init__(self, tokens: Tokens, scope: str, metrics: Metrics) -> None:
        self._tokens, self._scope, self._metrics = tokens, scope, metrics

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> grpc.RpcMethodHandler | None:
        """The handler of the method, or one that refuses."""
        handler: grpc.RpcMethodHandler | None = await continuation(details)
        if details.method.startswith(OPEN):
            return handler
        try:
            self._tokens.check(_header(details.invocation_metadata), self._scope)
        except ServiceError as error:
            # What clients call is a label only where there is such a method.
            rpc = UNKNOWN if handler is None else details.method.rpartition("/")[2]
            return self._refusal(error, rpc)
        return handler

    def _refusal(self, error: ServiceError, rpc: str) -> grpc.RpcMethodHandler:
        async def refused() -> NoReturn:
            raise error

        async def refuse(messages: object, context: Context) -> None:
            call = Call(rpc)
            if isinstance(status := await settle(refused(), call, self._metrics), Status):
                await abort(status, context)

        # As a stream, so that not a byte of the request is read.
        return grpc.stream_stream_rpc_method_handler(refuse)


def _header(metadata: Any) -> str:
    return next((str(value) for key, value in metadata or () if key == HEADER), "")
