import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

import grpc
from grpc import StatusCode

from logitsieve.api import errors
from logitsieve.server.logs import INCIDENT, REQUEST_ID
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import TRAILER

T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger(__name__)

PUSHBACK = "grpc-retry-pushback-ms"

MAX_TEXT = 500  # gRPC replaces a status over 8 KiB, and it has the message twice

EXHAUSTED_RETRY_MS = 100

CODES: dict[type[errors.LogitsieveError], StatusCode] = {
    errors.InvalidRequest: StatusCode.INVALID_ARGUMENT,
    errors.InvalidKnob: StatusCode.INVALID_ARGUMENT,
    errors.RequestTooLarge: StatusCode.RESOURCE_EXHAUSTED,
    errors.ModelNotFound: StatusCode.NOT_FOUND,
    errors.Unauthenticated: StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: StatusCode.PERMISSION_DENIED,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.ShardUnavailable: StatusCode.UNAVAILABLE,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.DeviceExhausted: StatusCode.RESOURCE_EXHAUSTED,
    errors.DeviceLost: StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    errors.Unimplemented: StatusCode.UNIMPLEMENTED,
    # These show a defect of the server if a request meets them.
    errors.LogitsieveError: StatusCode.INTERNAL,
    errors.ServiceError: StatusCode.INTERNAL,
    errors.InternalError: StatusCode.INTERNAL,
    errors.IndexUnreadable: StatusCode.INTERNAL,
    errors.BuildFailed: StatusCode.INTERNAL,
    errors.TargetNotReached: StatusCode.INTERNAL,
    errors.TrainingFailed: StatusCode.INTERNAL,
    errors.MissingExtra: StatusCode.INTERNAL,
}


class CallStatus(NamedTuple):
    code: StatusCode
    error: pb.Error

    @property
    def trailer(self) -> tuple[tuple[str, str | bytes], ...]:
        entry = (TRAILER, self.error.SerializeToString())
        if not self.error.retry_after_ms:
            return (entry,)
        return entry, (PUSHBACK, str(self.error.retry_after_ms))


def to_status(error: Exception) -> CallStatus:
    """Make the status of a failed call. Clients get only the id of an internal error.

    The error's traceback is dropped, because its frames keep the request in memory.
    """
    code = CODES[type(error)] if isinstance(error, errors.LogitsieveError) else StatusCode.INTERNAL
    reply = pb.Error(code=code.value[0], message=_short(str(error)))
    if code is StatusCode.INTERNAL:
        reply.incident = uuid.uuid4().hex[:12]
        reply.message = f"internal error, incident {reply.incident}"
        fields = {"event": INCIDENT, "fields": {"incident": reply.incident}}
        log.error("incident %s", reply.incident, exc_info=error, extra=fields)
    reply.field = _short(getattr(error, "field", ""))
    if isinstance(error, errors.Overloaded):
        reply.retry_after_ms = round(error.retry_after_s * 1000)
    elif isinstance(error, errors.DeviceExhausted):
        reply.retry_after_ms = EXHAUSTED_RETRY_MS
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return CallStatus(code, reply)


async def abort(status: CallStatus, context: Any, request_id: str = "") -> NoReturn:
    trailer = status.trailer + (((REQUEST_ID, request_id),) if request_id else ())
    await context.abort(status.code, status.error.message, trailer)
    raise AssertionError("abort raises")


def guarded(handler: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """End a call with our status if `handler(..., context)` fails; gRPC would send its text."""

    @wraps(handler)
    async def safe(*called: P.args, **named: P.kwargs) -> T:
        reply, context = handler(*called, **named), called[-1]
        del called  # gRPC's error keeps this frame until a garbage collection
        try:
            return await reply
        except grpc.aio.BaseError:
            raise
        except Exception as error:
            await abort(to_status(error), context)

    return safe


def ending(status: CallStatus) -> grpc.RpcMethodHandler:
    @guarded
    async def end(messages: object, context: Any) -> None:
        await abort(status, context)

    return grpc.stream_stream_rpc_method_handler(end)


def _short(text: str) -> str:
    return text.encode("ascii", "backslashreplace")[:MAX_TEXT].decode("ascii")
