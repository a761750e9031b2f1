import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import entry_points
from typing import Any, Protocol

from grpc import StatusCode
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from logitsieve.api.errors import InvalidRequest, MissingExtra, RequestTooLarge
from logitsieve.server.config import ServeConfig
from logitsieve.server.http.listener import CERTIFIED, read_body
from logitsieve.server.models.routes import Routes
from logitsieve.server.rpc.status import to_status
from logitsieve.server.security import ApiKeys
from logitsieve.utils.environment import is_loopback

PLAIN = ("/metrics", "/healthz", "/readyz")


@dataclass(frozen=True, kw_only=True)
class ServerView:
    config: ServeConfig
    routes: Callable[[], Routes]
    admit: Callable[[float | None], object]  # raises if work with this many seconds left is refused
    registry: CollectorRegistry
    ready: Callable[[], bool]
    api_keys: ApiKeys | None
    secure: bool


class Console(Protocol):
    """An ASGI application; `close` waits for its computations."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...
    def close(self) -> None: ...


def open_console(view: ServerView) -> Console | None:
    """Open the installed console, an entry point that takes a ServerView.

    None if `view.config` turns it off. MissingExtra if none is installed though it was asked for.
    """
    if not view.config.serves_console:
        return None
    try:
        for point in entry_points(group="logitsieve.console"):
            console: Console = point.load()(view)
            return console
        raise MissingExtra("logitsieve.console", "console")
    except MissingExtra:
        if view.config.console:
            raise
        return None


class LocalNames:
    """Answers only requests to names of loopback.

    Otherwise a site could let its own name resolve to loopback, and read the pages.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = self._app
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
            if not is_loopback(name):
                message = f"host: {host[:100]!r} is not a name of loopback\n"
                reply = PlainTextResponse(message, 403)
        await reply(scope, receive, send)


class CertifiedClients:
    """Answers only clients with a certificate, which TLS has checked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = self._app
        if scope["type"] == "http" and not scope.get("state", {}).get(CERTIFIED):
            reply = PlainTextResponse("certificate: got none, allowed: one of tls_client_ca\n", 403)
        await reply(scope, receive, send)


def application(
    metrics: Callable[[], bytes],
    ready: Callable[[], bool],
    stopping: Callable[[], bool] = lambda: False,
    console: Console | None = None,
    local: bool = False,
    certified: bool = False,
) -> Starlette:
    """Make the application; `metrics()` returns the text of a scrape.

    A server that is `stopping()` counts as alive, so that it may drain. `local` puts LocalNames
    before all pages, `certified` puts CertifiedClients before the console.
    """

    async def scrape(request: Request) -> Response:
        return Response(metrics(), media_type=CONTENT_TYPE_LATEST)

    async def alive(request: Request) -> Response:
        return PlainTextResponse("draining\n" if stopping() else "alive\n")

    async def is_ready(request: Request) -> Response:
        if ready() and not stopping():
            return PlainTextResponse("ready\n")
        return PlainTextResponse("draining\n" if stopping() else "not ready\n", 503)

    answers = zip(PLAIN, (scrape, alive, is_ready), strict=True)
    routes: list[Route | Mount] = [Route(path, answer) for path, answer in answers]
    if console is not None:
        routes.append(Mount("/", CertifiedClients(console) if certified else console))
    guard = [Middleware(LocalNames)] if local else []
    return Starlette(routes=routes, exception_handlers={Exception: _incident}, middleware=guard)


async def read_json(request: Request, most: int) -> dict[str, Any]:
    """Read a JSON object of at most `most` bytes. InvalidRequest; raises like `Bodies.hold`.

    Browsers let pages of other sites send this content type only after asking (CORS).
    """
    check_json(request)
    return parsed(await read_body(request, most))


def check_json(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip(" \t")
    if kind.lower() != "application/json":
        raise InvalidRequest("content-type", f"{kind!a:.80}", "application/json")


def parsed(body: bytes) -> dict[str, Any]:
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("body", f"{error!s:.80}", "a JSON object") from error
    if not isinstance(read, dict):
        raise InvalidRequest("body", f"{type(read).__name__}", "a JSON object")
    return read


async def _incident(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{to_status(error).error.message}\n", 500)


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
    call, headers = to_status(error), dict[str, str]()
    status = STATUSES.get(call.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    if isinstance(error, RequestTooLarge):
        status, headers = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"Connection": "close"}
    if call.error.retry_after_ms:
        headers["Retry-After"] = str(-(-call.error.retry_after_ms // 1000))
    return status, call.error.message, call.error.field, headers
