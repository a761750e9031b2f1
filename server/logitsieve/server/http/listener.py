"""An HTTP port by uvicorn's protocol, with limits on connections and on requests' bodies.

It shares gRPC's event loop, so /healthz answers only while gRPC requests can be answered.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import h11
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from logitsieve.api.errors import Overloaded, RequestTooLarge, Unavailable

PART = 1 << 16  # bytes that must arrive in `patience_s`
MOST, SHARE = 64 << 20, 32 << 20  # counted bytes of all bodies, and of one address
RETRY_S = 1.0
CLOSE = {"Connection": "close"}
PATIENCE_S = 5.0  # for a request's head to arrive, and for a reply to be read
MAX_HEAD = 1 << 14
MOST_RESTING = 100
CERTIFIED = "certified"  # whether a request's client has shown a certificate
Application = Callable[[Any, Any, Any], Awaitable[None]]


class Bodies:
    """Limits the `bytes` of the bodies that a port holds, not counting the first PART of each."""

    def __init__(self, patience_s: float, most: int = MOST, share: int = SHARE) -> None:
        self._patience_s, self._most, self._share = patience_s, most, share
        self._held = Counter[str]()
        self.bytes = 0

    @asynccontextmanager
    async def hold(self, request: Request, most: int) -> AsyncIterator[bytes]:
        """Read a body of at most `most` bytes, and count it until the end of the `with`.

        RequestTooLarge; Unavailable or Overloaded beyond the limits; HTTPException 408 if a part
        comes too late; starlette's ClientDisconnect.
        """
        address, counted = request.client.host if request.client else "", 0
        body = bytearray()
        try:
            _check(_announced(request), most)
            async with asyncio.timeout(self._patience_s) as limit:
                due = PART
                async for chunk in request.stream():
                    body += chunk
                    _check(len(body), most)
                    if (more := len(body) - PART - counted) > 0:
                        self._admit(address, more)
                        self._held[address] += more
                        self.bytes += more
                        counted += more
                    if len(body) >= due:
                        due = len(body) + PART
                        limit.reschedule(asyncio.get_running_loop().time() + self._patience_s)
            whole = bytes(body)
            body.clear()
            yield whole
        except TimeoutError as error:
            if not limit.expired():
                raise
            got, allowed = f"{len(body)} bytes", f"{PART} more within {self._patience_s:g} s"
            raise HTTPException(408, f"body: got {got}, allowed: {allowed}", CLOSE) from error
        finally:
            self._held[address] -= counted
            self.bytes -= counted
            self._held += Counter()

    def _admit(self, address: str, more: int) -> None:
        if self._held[address] + more > self._share:
            raise Overloaded(f"requests of one address have {self._share} bytes already", RETRY_S)
        if self.bytes + more > self._most:
            raise Unavailable(f"requests have {self._most} bytes already", "body")


def bodies_of(request: Request) -> Bodies:

    found: Bodies | None = request.scope.get("state", {}).get("bodies")
    return found or Bodies(patience_s=5.0)


async def read_body(request: Request, most: int) -> bytes:

    async with bodies_of(request).hold(request, most) as body:
        return body


def _announced(request: Request) -> int:
    size = request.headers.get("content-length", "0")
    return int(size) if size.isascii() and size.isdigit() and len(size) < 20 else 0


def _check(size: int, most: int) -> None:
    if size > most:
        raise RequestTooLarge("body", f"{size} bytes or more", f"at most {most} bytes")


async def _strict(application: Application, scope: Any, receive: Any, send: Any) -> None:
    """Refuse two things that h11 accepts: a head over MAX_HEAD that arrives in one piece, and two
    statements of a body's length, of which a proxy may believe the other one."""
    names = [name for name, _ in scope["headers"]]
    head = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    head += len(scope["raw_path"]) + len(scope["query_string"])
    reply = application
    if head > MAX_HEAD:
        message = f"head: got {head} bytes, allowed: at most {MAX_HEAD}\n"
        reply = PlainTextResponse(message, 431, CLOSE)
    elif b"content-length" in names and b"transfer-encoding" in names:
        message = "content-length: got one besides transfer-encoding, allowed: one of them\n"
        reply = PlainTextResponse(message, 400, CLOSE)
    await reply(scope, receive, send)


class Listener:
    """An HTTP port. A request and its reply may take `reply_s` seconds, at least `patience_s`."""

    def __init__(
        self, application: Application, patience_s: float = PATIENCE_S, reply_s: float = 0.0
    ) -> None:
        config = Config(
            partial(_strict, application),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=MAX_HEAD,
        )
        self._patience_s, self._state = patience_s, ServerState()
        seconds = patience_s, max(reply_s, patience_s)
        self._bodies = Bodies(patience_s)
        self._protocol = partial(PatientProtocol, config, self._state, {}, self._bodies, *seconds)
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    @property
    def held_bytes(self) -> int:

        return 2 * self._bodies.bytes  # a body is copied once

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        self._server = await asyncio.get_running_loop().create_server(
            self._protocol,
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else self._patience_s,
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def take(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(self._protocol, connection)

    async def settle(self, seconds: float) -> None:

        if tasks := list(self._state.tasks):
            await asyncio.wait(tasks, timeout=seconds)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, with a limit of `patience_s` on pauses and of `reply_s` on replies.

    `resting` lists the connections without a complete head since their last reply, oldest first.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        resting: dict[PatientProtocol, None],
        bodies: Bodies,
        patience_s: float,
        reply_s: float,
    ) -> None:
        super().__init__(config, state, {"bodies": bodies})
        self._resting, self._patience_s, self._reply_s = resting, patience_s, reply_s
        self._deadline: asyncio.TimerHandle | None = None
        self._answered = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state[CERTIFIED] = bool(transport.get_extra_info("peercert"))
        self._rest()
        if len(self._resting) > MOST_RESTING:
            oldest = next(iter(self._resting))
            oldest._resting.pop(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._resting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()

    def data_received(self, data: bytes) -> None:
        if self._answered:
            self._answered = False
            self._wait(self._reply_s)
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._resting.pop(self, None)

    def on_response_complete(self) -> None:
        self._rest()  # its deadline also holds for the client to read the last bytes
        super().on_response_complete()

    def _rest(self) -> None:
        self._answered = True
        self._resting[self] = None
        self._wait(self._patience_s)

    def _wait(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)
