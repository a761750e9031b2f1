"""Bodies of HTTP requests within limits, and statuses of errors."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from grpc import StatusCode
from starlette.requests import Request

from logitsieve.api.errors import InvalidRequest, RequestTooLarge
from logitsieve.server.rpc.status import to_status

STATUSES = {
    StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}


def http_failure(error: Exception) -> tuple[HTTPStatus, str, str, dict[str, str]]:
    """Return an error's status, message, field (or "") and headers."""
    call, headers = to_status(error), dict[str, str]()
    status = STATUSES.get(call.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    if isinstance(error, RequestTooLarge):
        status, headers = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"Connection": "close"}
    if call.error.retry_after_ms:
        headers["Retry-After"] = str(-(-call.error.retry_after_ms // 1000))
    return status, call.error.message, call.error.field, headers


async def read_json(request: Request, most: int) -> dict[str, Any]:
    """Read a JSON object of at most `most` bytes; InvalidRequest, or RequestTooLarge.

    A page of another site cannot send this content type without asking first.
    """
    kind = request.headers.get("content-type", "").partition(";")[0]
    if kind != "application/json":
        raise InvalidRequest("content-type", f"{kind!r:.80}", "application/json")
    body = await read_body(request, most)
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("body", f"{error!s:.80}", "a JSON object") from error
    if not isinstance(read, dict):
        raise InvalidRequest("body", f"{type(read).__name__}", "a JSON object")
    return read


async def read_body(request: Request, most: int) -> bytes:
    """Read the body; RequestTooLarge once it is longer than `most` bytes."""
    announced = request.headers.get("content-length", "0")
    size = int(announced) if announced.isdigit() else 0
    body = bytearray()
    if size <= most:
        async for chunk in request.stream():
            body += chunk
            size = len(body)
            if size > most:
                break
    if size > most:
        raise RequestTooLarge("body", f"{size} bytes or more", f"at most {most} bytes")
    return bytes(body)
