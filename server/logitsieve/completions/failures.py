from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from logitsieve.api.errors import LogitsieveError
from logitsieve.server.http.application import http_failure

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
ERROR_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


async def failure(request: Request, error: Exception) -> Response:
    status, body, headers = error_object(error)
    return JSONResponse(body, status, headers)


def error_object(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:

    if isinstance(error, HTTPException):
        status, message, field = error.status_code, error.detail, ""
        headers = dict(error.headers or {})
    else:
        status, message, field, headers = http_failure(error)
    kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = ERROR_CODES.get(status) if isinstance(error, LogitsieveError) else None
    about = {"message": message, "type": kind, "param": field or None, "code": code}
    return status, {"error": about}, headers
