"""gRPC reflection: it describes a port's services to tools."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, aio
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from logitsieve.server.rpc.handlers import Context, parse
from logitsieve.server.rpc.seats import Seats

NAMES = (SERVICE_NAME, SERVICE_NAME.replace("v1alpha", "v1"))  # of equal messages
MOST = 8


def reflection(handlers: Sequence[Any]) -> list[grpc.GenericRpcHandler]:
    """Describe the services of these handlers."""
    services = (*(handler.service_name() for handler in handlers), SERVICE_NAME)
    servicer, seats = aio.ReflectionServicer(services), Seats("reflections", MOST)

    async def info(messages: AsyncIterator[bytes], context: Context) -> None:
        async def requests() -> AsyncIterator[Any]:
            async for message in messages:
                yield parse(ServerReflectionRequest, message)

        with seats.taken(context.peer()):
            async for reply in servicer.ServerReflectionInfo(requests(), context):
                await context.write(reply.SerializeToString())

    method = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(info)}
    return [grpc.method_handlers_generic_handler(name, method) for name in NAMES]
