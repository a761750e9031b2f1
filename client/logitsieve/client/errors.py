"""Translate gRPC statuses and the trailer `logitsieve-error-bin` to our exceptions."""

from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError

from logitsieve.api import errors
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import TRAILER

UNSENT = "Internal error from Core"  # gRPC's text if a call ends while the client sends a message
# gRPC's texts for failed connections, and hints without and with TLS.
NOT_CONNECTED = ("failed to connect", "connections to all backends failing", "errors resolving")
HINTS: dict[str, tuple[str, str]] = {
    "Connection refused": ("nothing answers at {}: is `logitsieve serve` running there?",) * 2,
    "errors resolving": ("{} has no address: is the name right?",) * 2,
    "Failed parsing HTTP/2": ("{} does not speak gRPC: is that the metrics port?",) * 2,
    "WRONG_VERSION_NUMBER": ("", "{} does not speak TLS: connect without it"),
    "CERTIFICATE_VERIFY_FAILED": ("", "{} is not trusted: is its authority in `tls.ca`?"),
    "Socket closed": (
        "{} closed the connection: does it ask for TLS?",
        "{} closed the connection: does it ask for a client's certificate?",
    ),
}


def to_exception(
    failure: grpc.RpcError, address: str = "", tls: bool = False, other_port: str = ""
) -> errors.LogitsieveError:
    """Return the exception that a decoder in process would have raised.

    Without the server's trailer its text is gRPC's, or a hint about the address or `other_port`.
    """
    error, code = _trailer(failure), failure.code()
    if not error.message:
        code = grpc.StatusCode.UNAVAILABLE if failure.details() == UNSENT else code
        error.message = failure.details() or code.name
        if address:
            error.message = _explained(error.message, address, tls, other_port)
    return EXCEPTIONS.get(code, _internal)(error)


def of_message(error: pb.Error) -> errors.LogitsieveError:
    return EXCEPTIONS.get(STATUS.get(error.code, grpc.StatusCode.UNKNOWN), _internal)(error)


def _explained(words: str, address: str, tls: bool, other_port: str) -> str:
    if words == "Method not found!":
        return f"Method not found at {address}: is that the {other_port} port?"
    if words == "Deadline Exceeded":
        return f"{address} did not answer in time"
    if words.startswith(NOT_CONNECTED):
        for sign, hints in HINTS.items():
            if sign in words and (hint := hints[tls]):
                return hint.format(address)
    return words


def _trailer(failure: grpc.RpcError) -> pb.Error:
    error = pb.Error()
    for key, value in failure.trailing_metadata() or ():
        if key == TRAILER:
            try:
                error.ParseFromString(value)
            except DecodeError:
                return pb.Error()
    return error


def _invalid(error: pb.Error) -> errors.LogitsieveError:
    # The message is "field: got X, allowed: Y", which may have been shortened.
    field = error.field or "request"
    got, _, allowed = error.message.removeprefix(f"{field}: got ").partition(", allowed: ")
    kind = errors.InvalidKnob if field.startswith("knobs.") else errors.InvalidRequest
    exception = kind(field, got, allowed)
    exception.args = (error.message,)
    return exception


def _exhausted(error: pb.Error) -> errors.LogitsieveError:
    # gRPC itself refuses large messages, without our trailer.
    if "larger than max" in error.message:
        return errors.RequestTooLarge("request", error.message, "the limits that models() shows")
    return errors.Overloaded(error.message, error.retry_after_ms / 1000)


def _internal(error: pb.Error) -> errors.LogitsieveError:
    return errors.InternalError(error.message, error.incident)


def _about_field(kind: type[errors.ServiceError]) -> Callable[[pb.Error], errors.LogitsieveError]:
    return lambda error: kind(error.message, error.field)


EXCEPTIONS: dict[grpc.StatusCode, Callable[[pb.Error], errors.LogitsieveError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: _invalid,
    grpc.StatusCode.RESOURCE_EXHAUSTED: _exhausted,
    grpc.StatusCode.NOT_FOUND: _about_field(errors.ModelNotFound),
    grpc.StatusCode.UNAUTHENTICATED: _about_field(errors.Unauthenticated),
    grpc.StatusCode.PERMISSION_DENIED: _about_field(errors.PermissionDenied),
    grpc.StatusCode.UNAVAILABLE: _about_field(errors.Unavailable),
    # The client was closed, or the server is shutting down.
    grpc.StatusCode.CANCELLED: _about_field(errors.Unavailable),
    grpc.StatusCode.DEADLINE_EXCEEDED: _about_field(errors.DeadlineExceeded),
    grpc.StatusCode.UNIMPLEMENTED: _about_field(errors.Unimplemented),
}
STATUS: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
