"""gRPC status and the `logitsieve-error-bin` trailer -> our exceptions."""

from __future__ import annotations

from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError

from logitsieve.api.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidKnob,
    InvalidRequest,
    LogitsieveError,
    ModelNotFound,
    NotBuilt,
    Overloaded,
    PermissionDenied,
    RequestTooLarge,
    Unauthenticated,
    Unavailable,
)
from logitsieve.v1 import decoder_pb2 as pb

TRAILER = "logitsieve-error-bin"


def to_exception(failure: grpc.RpcError) -> LogitsieveError:
    """The exception that in-process code would have raised; without a trailer, gRPC's own words."""
    error = _trailer(failure)
    if not error.message:
        error.message = failure.details() or failure.code().name
    return EXCEPTIONS.get(failure.code(), _internal)(error)


def of_message(error: pb.Error) -> LogitsieveError:
    """The same of an Error that came as the reply to one message of a stream."""
    return EXCEPTIONS.get(STATUS.get(error.code, grpc.StatusCode.UNKNOWN), _internal)(error)


def _trailer(failure: grpc.RpcError) -> pb.Error:
    error = pb.Error()
    for key, value in failure.trailing_metadata() or ():
        if key == TRAILER:
            try:
                error.ParseFromString(value)
            except DecodeError:
                return pb.Error()
    return error


def _invalid(error: pb.Error) -> LogitsieveError:
    # The message is "field: got X, allowed: Y": taking it apart gives the same exception again.
    field = error.field or "request"
    got, _, allowed = error.message.removeprefix(f"{field}: got ").partition(", allowed: ")
    kind = InvalidKnob if field.startswith("knobs.") else InvalidRequest
    return kind(field, got, allowed or "see the server's documentation")


def _exhausted(error: pb.Error) -> LogitsieveError:
    # gRPC itself refuses a large message, on either side, and has no trailer of ours.
    if "larger than max" in error.message:
        return RequestTooLarge("request", error.message, "the limits that models() shows")
    return Overloaded(error.message, error.retry_after_ms / 1000)


def _internal(error: pb.Error) -> LogitsieveError:
    return InternalError(error.message, error.incident)


EXCEPTIONS: dict[grpc.StatusCode, Callable[[pb.Error], LogitsieveError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: _invalid,
    grpc.StatusCode.RESOURCE_EXHAUSTED: _exhausted,
    grpc.StatusCode.NOT_FOUND: lambda error: ModelNotFound(error.message, error.field),
    grpc.StatusCode.UNAUTHENTICATED: lambda error: Unauthenticated(error.message, error.field),
    grpc.StatusCode.PERMISSION_DENIED: lambda error: PermissionDenied(error.message, error.field),
    grpc.StatusCode.UNAVAILABLE: lambda error: Unavailable(error.message, error.field),
    # By closing the client, or by a server that cannot wait any longer.
    grpc.StatusCode.CANCELLED: lambda error: Unavailable(error.message, error.field),
    grpc.StatusCode.DEADLINE_EXCEEDED: lambda error: DeadlineExceeded(error.message, error.field),
    grpc.StatusCode.UNIMPLEMENTED: lambda error: NotBuilt(error.message, error.field),
}
STATUS: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
