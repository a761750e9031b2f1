"""Exceptions -> gRPC status codes in one table, and the trailer with the rest."""

from __future__ import annotations

import logging
import uuid
from typing import NamedTuple

from grpc import StatusCode

from logitsieve.api import errors
from logitsieve.server.logs import INCIDENT
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import TRAILER

log = logging.getLogger(__name__)

PUSHBACK = "grpc-retry-pushback-ms"

# A trailer over 8 KiB makes gRPC replace the status; it has the message twice.
MAX_TEXT = 500

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
    errors.NotBuilt: StatusCode.UNIMPLEMENTED,
    # A request that meets one of these shows a defect of ours.
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
    """A failure, as a reply on a stream or as the end of a call."""

    code: StatusCode
    error: pb.Error

    @property
    def trailer(self) -> tuple[tuple[str, str | bytes], ...]:
        entry = (TRAILER, self.error.SerializeToString())
        if not self.error.retry_after_ms:
            return (entry,)
        return entry, (PUSHBACK, str(self.error.retry_after_ms))


def to_status(error: Exception) -> CallStatus:
    """Make the status of a failed call: INTERNAL, logged under an incident id, if unforeseen.

    Of an incident, only the id leaves the server.
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
    return CallStatus(code, reply)


def _short(text: str) -> str:
    return text.encode("ascii", "backslashreplace")[:MAX_TEXT].decode("ascii")
