import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import grpc

from logitsieve.api.errors import ServiceError
from logitsieve.server.metrics import UNKNOWN, UNREAD, Call, Metrics
from logitsieve.server.rpc.handlers import Context, failed
from logitsieve.server.rpc.health import HEALTH
from logitsieve.server.rpc.intake import Arrived, Intake
from logitsieve.server.rpc.status import abort, ending, guarded, to_status
from logitsieve.server.security import HEADER, ApiKeys

Answer = Callable[[Any, Context], Awaitable[Any]]


class Entrance(grpc.GenericRpcHandler):  # type: ignore[misc]  # the library is untyped
    """Wraps handlers that take raw messages. A call without a valid API key ends unread.

    gRPC calls a unary method only when its message has arrived, which may be never. So all methods
    are registered as streams, and read their message here. Health checks have a memory of their
    own, and need no key.
    """

    def __init__(
        self,
        handlers: Sequence[grpc.GenericRpcHandler],
        intake: Intake,
        probes: Intake,
        metrics: Metrics,
        api_keys: ApiKeys | None,
        scope: str,
    ) -> None:
        self._handlers, self._metrics = handlers, metrics
        self._api_keys, self._scope = api_keys, scope
        self._intake, self._probes = intake, probes
        self._found: dict[str, grpc.RpcMethodHandler] = {}

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        try:
            method = details.method
            handler = self._found[method] if method in self._found else self._find(details)
            if not method.startswith(HEALTH):
                try:
                    self._check_key(details.invocation_metadata)
                except ServiceError as error:
                    # The name of a method that does not exist must not become a label.
                    rpc = UNKNOWN if handler is None else method.rpartition("/")[2]
                    return ending(failed(error, Call(rpc), self._metrics))
            return handler
        except Exception as error:  # or gRPC would send its text to the client
            return ending(to_status(error))

    def _check_key(self, metadata: Any) -> None:
        if self._api_keys is not None:
            header = next((str(value) for key, value in metadata or () if key == HEADER), "")
            self._api_keys.check(header, self._scope)

    def _find(self, details: Any) -> grpc.RpcMethodHandler | None:
        found = (handler.service(details) for handler in self._handlers)
        handler = next((each for each in found if each is not None), None)
        if handler is not None:
            handler = self._found[details.method] = self._reading(details.method, handler)
        return handler

    def _reading(self, method: str, handler: Any) -> grpc.RpcMethodHandler:
        intake = self._probes if method.startswith(HEALTH) else self._intake
        if handler.request_streaming:
            answer = self._streaming(handler.stream_stream, intake)
            return grpc.stream_stream_rpc_method_handler(answer)
        rpc = method.rpartition("/")[2]
        if handler.response_streaming:
            answer = self._answering(rpc, handler.unary_stream, intake)
            return grpc.stream_stream_rpc_method_handler(answer)
        answer = self._answering(rpc, handler.unary_unary, intake)
        return grpc.stream_unary_rpc_method_handler(answer)

    def _answering(self, rpc: str, answer: Answer, intake: Intake) -> Callable[..., Any]:
        @guarded
        async def read_and_answer(messages: object, context: Context) -> Any:
            try:
                message, held = await intake.message(context)
            except (Exception, asyncio.CancelledError) as error:
                await abort(failed(error, Call(rpc, shed=UNREAD), self._metrics), context)
            answering = answer(message, Arrived(context, intake, held))
            del message  # for the same reason as in `guarded`
            reply = await answering
            if reply is not None:  # a stream has sent its replies already
                intake.reply(held)
            return reply

        return read_and_answer

    def _streaming(self, answer: Answer, intake: Intake) -> Callable[..., Any]:
        @guarded
        async def read_and_answer(messages: object, context: Context) -> None:
            check = partial(self._check_key, context.invocation_metadata())
            await answer(messages, Arrived(context, intake, check_key=check))

        return read_and_answer
