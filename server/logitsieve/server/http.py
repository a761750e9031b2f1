"""The HTTP port: /metrics, /healthz and /readyz, on the event loop that answers requests.

It shares the loop on purpose: /healthz answers only while requests can be answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST

# A scraper sends a few hundred bytes at once and reads at once; a slower client is dropped.
PATIENCE_S = 5.0
MAX_HEAD = 1 << 14


class Page(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class HttpServer:
    """GET and HEAD of three pages; one request a connection."""

    def __init__(
        self,
        metrics: Callable[[], bytes],
        ready: Callable[[], bool],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._metrics = metrics
        self._ready = ready
        self._patience_s = patience_s
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. OSError if it cannot be bound."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_HEAD)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def page(self, path: str) -> Page:
        if path == "/metrics":
            return Page(HTTPStatus.OK, self._metrics(), CONTENT_TYPE_LATEST)
        if path == "/healthz":
            return Page(HTTPStatus.OK, b"alive\n")
        if path == "/readyz" and self._ready():
            return Page(HTTPStatus.OK, b"ready\n")
        if path == "/readyz":
            return Page(HTTPStatus.SERVICE_UNAVAILABLE, b"not ready\n")
        return Page(HTTPStatus.NOT_FOUND, b"here are /metrics, /healthz and /readyz\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._respond(head))
                writer.close()
                await writer.wait_closed()  # when all is sent, which a client can put off
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, TimeoutError):
            pass  # gone, too slow or not HTTP: no client to answer
        finally:
            writer.transport.abort()

    def _respond(self, head: bytes) -> bytes:
        line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(line) != 3 or line[0] not in ("GET", "HEAD"):
            page = Page(HTTPStatus.METHOD_NOT_ALLOWED, b"GET or HEAD\n")
        else:
            page = self.page(line[1].partition("?")[0])
        fields = (
            f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
            f"Content-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return fields.encode() + (b"" if line[0] == "HEAD" else page.body)
