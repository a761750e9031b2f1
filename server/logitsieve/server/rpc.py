"""From a method over bytes to a gRPC handler: errors, metrics and cancellation in one place.

gRPC's own deserializers answer UNKNOWN to garbage, so handlers take the raw bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.status import to_status
from logitsieve.types.errors import DeadlineExceeded, InvalidRequest, NotBuilt, Overloaded

Context = Any  # grpc.aio.ServicerContext; its stubs know no request and reply types of bytes
Behaviour = Callable[[bytes, Context, Call], Awaitable[bytes]]
M = TypeVar("M", bound=Message)

SHED = {Overloaded: "in_flight", DeadlineExceeded: "deadline"}


def parse(kind: type[M], message: bytes) -> M:
    """The message in these bytes; InvalidRequest if there is none."""
    try:
        return kind.FromString(message)
    except DecodeError as error:
        name = kind.DESCRIPTOR.name
        raise InvalidRequest(
            "request", f"{len(message)} bytes that are none", f"a serialized {name}"
        ) from error


def unary(rpc: str, behaviour: Behaviour, metrics: Metrics) -> grpc.RpcMethodHandler:
    """`behaviour` as a unary handler: every failure becomes a status with our trailer."""

    async def handler(message: bytes, context: Context) -> bytes:
        call = Call(rpc)
        try:
            reply = await behaviour(message, context, call)
        except asyncio.CancelledError:
            call.finish("CANCELLED")
            metrics.record(call)
            raise
        except Exception as error:  # the boundary: whatever it is, the client must hear of it
            await _abort(error, context, call, metrics)
            raise  # not reached: abort raises
        call.finish("OK")
        # Counted after the reply has left, so that nobody waits for it.
        asyncio.get_running_loop().call_soon(metrics.record, call)
        return reply

    return grpc.unary_unary_rpc_method_handler(handler)


def not_built(rpc: str, metrics: Metrics, *, stream: bool = False) -> grpc.RpcMethodHandler:
    """A handler that answers UNIMPLEMENTED."""
    error = NotBuilt(f"{rpc} is not built in this server")

    async def refuse(message: bytes, context: Context, call: Call) -> bytes:
        raise error

    async def refuse_stream(messages: AsyncIterator[bytes], context: Context) -> None:
        await _abort(error, context, Call(rpc), metrics)

    if stream:
        return grpc.stream_stream_rpc_method_handler(refuse_stream)
    return unary(rpc, refuse, metrics)


async def _abort(error: Exception, context: Context, call: Call, metrics: Metrics) -> None:
    status = to_status(error)
    if reason := SHED.get(type(error)):
        metrics.shed(reason)
    call.finish(status.code.name)
    metrics.record(call)
    await context.abort(status.code, status.message, status.trailer)
