"""All methods of a port. Their messages are read within its limits on memory and time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from logitsieve.server.metrics import UNREAD, Call, Metrics
from logitsieve.server.rpc.handlers import Context, failed
from logitsieve.server.rpc.health import HEALTH
from logitsieve.server.rpc.intake import Arrived, Intake
from logitsieve.server.rpc.status import abort, guarded

Answer = Callable[[bytes, Context], Awaitable[Any]]


class Entrance(grpc.GenericRpcHandler):  # type: ignore[misc]  # the library is untyped
    """Calls the handlers of raw messages; health checks have memory of their own.

    gRPC calls the handler of a unary call when it has read the message, be it never: so here all
    are handlers of streams, that read it themselves.
    """

    def __init__(
        self,
        handlers: Sequence[grpc.GenericRpcHandler],
        intake: Intake,
        probes: Intake,
        metrics: Metrics,
    ) -> None:
        self._handlers, self._metrics = handlers, metrics
        self._intake, self._probes = intake, probes
        self._found: dict[str, grpc.RpcMethodHandler] = {}

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        method = details.method
        if method not in self._found:
            found = (handler.service(details) for handler in self._handlers)
            handler = next((each for each in found if each is not None), None)
            if handler is None:
                return None
            self._found[method] = self._reading(method, handler)
        return self._found[method]

    def _reading(self, method: str, handler: Any) -> grpc.RpcMethodHandler:
        intake = self._probes if method.startswith(HEALTH) else self._intake
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(_streamed(handler.stream_stream, intake))
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
            del message  # as `guarded` does
            reply = await answering
            if reply is not None:  # or it was a stream's
                held.replying()
            return reply

        return read_and_answer


def _streamed(answer: Callable[..., Awaitable[None]], intake: Intake) -> Callable[..., Any]:
    @guarded
    async def read_and_answer(messages: object, context: Context) -> None:
        await answer(messages, Arrived(context, intake))

    return read_and_answer
