"""What went wrong, as gRPC says it: the one table from exceptions to status codes."""

from __future__ import annotations

import logging
import uuid
from typing import NamedTuple

from grpc import StatusCode

from logitsieve.api.errors import (
    BuildFailed,
    DeadlineExceeded,
    DeviceExhausted,
    DeviceLost,
    IndexUnreadable,
    InternalError,
    InvalidKnob,
    InvalidRequest,
    LogitsieveError,
    MissingExtra,
    ModelNotFound,
    NotBuilt,
    Overloaded,
    PermissionDenied,
    RequestTooLarge,
    ServiceError,
    TargetNotReached,
    TrainingFailed,
    Unauthenticated,
    Unavailable,
)
from logitsieve.v1 import decoder_pb2 as pb

log = logging.getLogger(__name__)

TRAILER = "logitsieve-error-bin"
PUSHBACK = "grpc-retry-pushback-ms"

# A trailer over 8 KiB makes gRPC replace the whole status; the message stands in it twice.
MAX_TEXT = 500

# A GPU has memory again when what uses it now is done: a few of the largest batches.
EXHAUSTED_RETRY_MS = 100

CODES: dict[type[LogitsieveError], StatusCode] = {
    InvalidRequest: StatusCode.INVALID_ARGUMENT,
    InvalidKnob: StatusCode.INVALID_ARGUMENT,
    RequestTooLarge: StatusCode.RESOURCE_EXHAUSTED,
    ModelNotFound: StatusCode.NOT_FOUND,
    Unauthenticated: StatusCode.UNAUTHENTICATED,
    PermissionDenied: StatusCode.PERMISSION_DENIED,
    Unavailable: StatusCode.UNAVAILABLE,
    Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    DeviceExhausted: StatusCode.RESOURCE_EXHAUSTED,
    # By this process; another server, or this one started again, may answer.
    DeviceLost: StatusCode.UNAVAILABLE,
    DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    NotBuilt: StatusCode.UNIMPLEMENTED,
    # No request should meet these: where one does, it is our defect.
    LogitsieveError: StatusCode.INTERNAL,
    ServiceError: StatusCode.INTERNAL,
    InternalError: StatusCode.INTERNAL,
    IndexUnreadable: StatusCode.INTERNAL,
    BuildFailed: StatusCode.INTERNAL,
    TargetNotReached: StatusCode.INTERNAL,
    TrainingFailed: StatusCode.INTERNAL,
    MissingExtra: StatusCode.INTERNAL,
}


class Status(NamedTuple):
    """How a call failed, as a stream's reply or as a whole call's end says it."""

    code: StatusCode
    error: pb.Error

    @property
    def trailer(self) -> tuple[tuple[str, str | bytes], ...]:
        """Trailing metadata of a call that ends so."""
        own = (TRAILER, self.error.SerializeToString())
        if not self.error.retry_after_ms:
            return (own,)
        return own, (PUSHBACK, str(self.error.retry_after_ms))


def to_status(error: Exception) -> Status:
    """The status of a failed call. What is not foreseen is INTERNAL, logged under an incident id.

    Only the id leaves the server then: neither the message nor the traceback does.
    """
    code = CODES[type(error)] if isinstance(error, LogitsieveError) else StatusCode.INTERNAL
    reply = pb.Error(code=code.value[0], message=_short(str(error)))
    if code is StatusCode.INTERNAL:
        reply.incident = uuid.uuid4().hex[:12]
        reply.message = f"internal error, incident {reply.incident}"
        fields = {"event": "incident", "fields": {"incident": reply.incident}}
        log.error("incident %s", reply.incident, exc_info=error, extra=fields)
    reply.field = _short(getattr(error, "field", ""))
    if isinstance(error, Overloaded):
        reply.retry_after_ms = round(error.retry_after_s * 1000)
    elif isinstance(error, DeviceExhausted):
        reply.retry_after_ms = EXHAUSTED_RETRY_MS
    return Status(code, reply)


def _short(text: str) -> str:
    return text.encode("ascii", "backslashreplace")[:MAX_TEXT].decode("ascii")
