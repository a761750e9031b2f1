"""gRPC handlers, which parse messages, count calls, and turn errors into statuses.

They take raw bytes, because gRPC's own deserializers answer UNKNOWN to garbage.
"""

import logging
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from logitsieve.api.errors import InvalidRequest
from logitsieve.server.logs import FAILED, REQUEST_ID, event
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.rpc.status import CallStatus, abort, to_status
from logitsieve.v1.rpcs import TIMEOUT

log = logging.getLogger(__name__)

Context = Any
Behaviour = Callable[[Any, Call], Awaitable[Message | bytes]]
M = TypeVar("M", bound=Message)

TRACE_KEYS = ("traceparent", "tracestate")
ID = re.compile(r"[!-~]{1,128}")  # without spaces, which separate the fields of the log
MOST_TOLD_NS = 5_000_000_000  # the longest wait that is believed on the client's word


class CallMetadata(NamedTuple):
    request_id: str
    trace: dict[str, str]
    timeout_ms: int  # of the whole call; 0 if absent, or hours


def read_metadata(metadata: Any) -> CallMetadata:
    request_id, trace, timeout_ms = "", {}, 0
    for key, value in metadata or ():
        if not isinstance(value, str):
            continue
        if key == TIMEOUT and not timeout_ms and re.fullmatch(r"[0-9]{1,7}", value):
            timeout_ms = int(value)
        elif key == REQUEST_ID and not request_id and ID.fullmatch(value):
            request_id = value
        elif key in TRACE_KEYS:
            trace[key] = value
    return CallMetadata(request_id, trace, timeout_ms)


def client_wait_ns(timeout_ms: int, left_s: float | None) -> int:
    """Return how long a call has waited in its client and in gRPC, at most MOST_TOLD_NS."""
    if not timeout_ms or left_s is None:
        return 0
    return min(MOST_TOLD_NS, max(0, timeout_ms * 1_000_000 - round(left_s * 1e9)))


def parse(kind: type[M], message: bytes) -> M:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        got, allowed = f"{len(message)} bytes that are none", f"a serialized {kind.DESCRIPTOR.name}"
        raise InvalidRequest("request", got, allowed) from error


def unary(
    rpc: str, kind: type[Message], behaviour: Behaviour, metrics: Metrics
) -> grpc.RpcMethodHandler:
    async def handler(message: bytes, context: Context) -> bytes:
        request_id, trace, timeout_ms = read_metadata(context.invocation_metadata())
        left_s, peer = context.time_remaining(), peer_of(context)
        call = Call(rpc, len(message), left_s, request_id=request_id, trace=trace, peer=peer)
        call.client_wait_ns = client_wait_ns(timeout_ms, left_s)
        call.shrink = context.held.shrink
        call.arrived_ns -= context.held.waited_ns
        try:
            reply = await behaviour(parse(kind, message), call)
            response = reply if isinstance(reply, bytes) else reply.SerializeToString()
        except BaseException as error:
            status = failed(error, call, metrics)
            del message  # for the same reason as in `guarded`
            await abort(status, context, call.request_id)
        metrics.finish(call, "OK")
        if call.request_id:
            context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
        return response

    return grpc.unary_unary_rpc_method_handler(handler)


def service(servicer: Any, metrics: Metrics) -> grpc.GenericRpcHandler:
    handlers = {
        rpc.name: unary(rpc.name, GetMessageClass(rpc.input_type), behaviour, metrics)
        for rpc in servicer.SERVICE.methods
        if (behaviour := getattr(servicer, rpc.name, None)) is not None
    }
    return grpc.method_handlers_generic_handler(servicer.SERVICE.full_name, handlers)


def failed(error: BaseException, call: Call, metrics: Metrics) -> CallStatus:
    """Count and log a failed call, and return its status. A cancellation is raised again."""
    if not isinstance(error, Exception):
        metrics.finish(call, "CANCELLED")
        raise error
    if reason := call.shed.get(type(error)):
        metrics.rejected[reason,] += 1
    status = to_status(error)
    metrics.finish(call, status.code.name)
    _log_failure(call, status)
    return status


def peer_of(context: Context) -> str:
    return str(context.peer()) if log.isEnabledFor(logging.DEBUG) else ""


def _log_failure(call: Call, status: CallStatus) -> None:
    # The message is left out because it may quote the request.
    call.request_id = call.request_id or uuid.uuid4().hex[:16]
    error, code = status.error, status.code.name
    about = (call.request_id, error.field, error.incident, call.id, call.peer)
    named = zip(("request_id", "field", "incident", "id", "peer"), about, strict=True)
    fields: dict[str, Any] = {name: value for name, value in named if value}
    text = " ".join(f"{name}={value}" for name, value in fields.items())
    message = f"{call.rpc} of {call.model} failed: {code} {text}"
    event(log, logging.INFO, FAILED, message, rpc=call.rpc, model=call.model, code=code, **fields)
