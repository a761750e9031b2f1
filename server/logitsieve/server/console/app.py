"""The application of the HTTP port: /metrics, /healthz and /readyz."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


def application(metrics: Callable[[], bytes], ready: Callable[[], bool]) -> Starlette:
    """`metrics()` is the text of a scrape; `ready()` whether requests are answered."""

    async def scrape(request: Request) -> Response:
        return Response(metrics(), media_type=CONTENT_TYPE_LATEST)

    async def alive(request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def is_ready(request: Request) -> Response:
        return PlainTextResponse("ready\n") if ready() else PlainTextResponse("not ready\n", 503)

    return Starlette(
        routes=[
            Route("/metrics", scrape),
            Route("/healthz", alive),
            Route("/readyz", is_ready),
        ]
    )
