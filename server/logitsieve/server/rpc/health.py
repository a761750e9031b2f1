import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, aio
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from logitsieve.api.errors import InvalidRequest
from logitsieve.server.models.routes import Routes
from logitsieve.server.rpc.handlers import Context, parse
from logitsieve.server.rpc.seats import Seats

SERVICE = "grpc.health.v1.Health"
HEALTH = f"/{SERVICE}/"
MOST_BYTES = 1024
MOST_WATCHES = 1000
NAMES = (SERVICE_NAME, SERVICE_NAME.replace("v1alpha", "v1"))
MOST_REFLECTIONS = 8


class Health:
    """The health of the server (""), of models (name) and of versions (name@version).

    All are NOT_SERVING until `publish`. `drain` ends watches.
    """

    def __init__(self, most_watches: int = MOST_WATCHES) -> None:
        self._states: dict[str, int] = {"": HealthCheckResponse.NOT_SERVING}
        self._changed = asyncio.Event()
        self._final = False
        self._watches = Seats("watches", most_watches)

    def handler(self) -> grpc.GenericRpcHandler:
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self.check),
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def check(self, message: bytes, context: Any) -> bytes:
        state = self._states.get(_service(message))
        if state is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return _reply(state)

    async def watch(self, message: bytes, context: Any) -> None:
        service, last = _service(message), None
        context.held.shrink(len(message))
        with self._watches.taken(context.peer()):
            while True:
                changed = self._changed
                state = self._states.get(service, HealthCheckResponse.SERVICE_UNKNOWN)
                if state != last:
                    await context.write(_reply(state))
                    last = state
                elif self._final:
                    return
                else:
                    await changed.wait()

    def publish(self, routes: Routes) -> bool:
        states = {v.label: v.served is not None for v in routes.by_key.values()}
        states |= {name: routes.get(name).served is not None for name in routes.names}
        states[""] = any(states.values())
        if not self._final:
            self._announce(states)
        return states[""]

    async def drain(self) -> None:
        self._final = True
        self._announce(dict.fromkeys(self._states, False))

    def _announce(self, states: dict[str, bool]) -> None:
        self._states = {
            service: HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
            for service, ready in states.items()
        }
        self._changed.set()
        self._changed = asyncio.Event()


def _service(message: bytes) -> str:
    if len(message) > MOST_BYTES:
        raise InvalidRequest("service", f"{len(message)} bytes", f"at most {MOST_BYTES} bytes")
    return str(parse(HealthCheckRequest, message).service)


def _reply(state: int | None) -> bytes:
    return bytes(HealthCheckResponse(status=state).SerializeToString())


def reflection(handlers: Sequence[Any]) -> list[grpc.GenericRpcHandler]:
    services = (*(handler.service_name() for handler in handlers), SERVICE_NAME)
    servicer, seats = aio.ReflectionServicer(services), Seats("reflections", MOST_REFLECTIONS)

    async def info(messages: AsyncIterator[bytes], context: Context) -> None:
        async def requests() -> AsyncIterator[Any]:
            async for message in messages:
                yield parse(ServerReflectionRequest, message)

        with seats.taken(context.peer()):
            async for reply in servicer.ServerReflectionInfo(requests(), context):
                await context.write(reply.SerializeToString())

    method = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(info)}
    return [grpc.method_handlers_generic_handler(name, method) for name in NAMES]
