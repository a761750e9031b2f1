"""The port of the endpoint, which passes requests to an engine in another process.

If the engine crashes, requests without an answer are passed on again. A request that it worked on
alone is refused from then on. If it worked on several, each becomes a suspect, and suspects are
passed on one at a time.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

import h11
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from logitsieve.api.errors import DeadlineExceeded, InvalidRequest, Overloaded
from logitsieve.completions.failures import error_object, failure
from logitsieve.completions.journal import GONE, MOST_JSON, TICKET_HEADER, Ticket, unless_gone
from logitsieve.completions.supervisor import FIRST_S, STUCK_S, Child, Line, Supervisor
from logitsieve.server.http.application import LocalNames, check_json, parsed
from logitsieve.server.http.listener import bodies_of
from logitsieve.server.security import HEADER, READ, ApiKeys

TRIES = 4
STRIKES = 3  # crashes after which a suspect is refused
REMEMBERED = 1024  # prompts that have ended an engine
JUDGED_S = 60.0  # after a connection's end an engine has ended, and its requests are judged
END_S = 2.0  # for a process to end once its connections have
RETRY_S = 1.0
KEPT = ("content-type", "retry-after", "allow")
PROMPTS = ("prompt", "messages", "tokens")
KILLED = "the engine ended while it worked on this request"


class EngineLost(Exception):
    """The engine closed a connection before the end of its answer."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    first: bytes
    rest: AsyncIterator[bytes]
    close: Callable[[], None]


class Front:
    def __init__(
        self,
        engine: Callable[[Line], None],
        *,
        api_keys: ApiKeys | None = None,
        timeout_s: float = 600,
        most: int = 1024,
        first_s: float = FIRST_S,
        stuck_s: float = STUCK_S,
    ) -> None:
        self.supervisor = Supervisor(engine, self._judge, first_s, stuck_s)
        self._api_keys, self._timeout_s, self._most = api_keys, timeout_s, most
        self._waiting = self._number = 0
        # Prompts are known by their digests.
        self._keys: dict[int, str] = {}  # by the number of a request
        self._strikes: dict[str, int] = {}
        self._guilty: dict[str, None] = {}
        self._alone = asyncio.Lock()
        registry = self._registry = CollectorRegistry()
        prefix = "logitsieve_completions"
        up = Gauge(f"{prefix}_engine_up", "1 if the engine is ready.", registry=registry)
        up.set_function(lambda: self.supervisor.ready)
        self._ends = Counter(f"{prefix}_engine_ends", "Engines that ended.", registry=registry)
        self._refused = Counter(
            f"{prefix}_requests_rejected",
            "Requests that no engine answered.",
            ["status"],
            registry=registry,
        )

    def application(self, local: bool) -> Starlette:
        """Make the application; `local` puts LocalNames before it."""
        routes = [
            Route("/health", self._health),
            Route("/metrics", self._guarded(self._scrape)),
            Route("/{path:path}", self._guarded(self._hand_on), methods=["GET", "POST"]),
        ]
        guard = [Middleware(LocalNames)] if local else []
        handlers = {Exception: failure, HTTPException: failure}
        return Starlette(routes=routes, middleware=guard, exception_handlers=handlers)

    def _guarded(
        self, endpoint: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                if self._api_keys is not None:
                    self._api_keys.check(request.headers.get(HEADER, ""), READ)
                return await endpoint(request)
            except ClientDisconnect:
                reply = Response(status_code=GONE)
            except Exception as error:
                reply = await failure(request, error)
            self._refused.labels(reply.status_code).inc()
            return reply

        return answer

    async def _health(self, request: Request) -> Response:
        supervisor = self.supervisor
        status = "stopping" if supervisor.stopping else "ok" if supervisor.ready else "starting"
        body = {"status": status, "engine_ends": supervisor.ends}
        return JSONResponse(body, 200 if status == "ok" else 503)

    async def _scrape(self, request: Request) -> Response:
        own, theirs = generate_latest(self._registry), b""
        if self.supervisor.ready:
            with suppress(EngineLost):
                answer = await self._ask(request, b"", 0, monotonic() + END_S)
                try:
                    theirs = await _whole(answer)
                finally:
                    answer.close()
        return Response(theirs + own, media_type=CONTENT_TYPE_LATEST)

    async def _hand_on(self, request: Request) -> Response:
        if request.method != "POST":
            return await self._tries(request, b"", "")
        check_json(request)
        async with bodies_of(request).hold(request, MOST_JSON) as body:
            field, key = await asyncio.to_thread(_prompt, body)
            if key in self._guilty:
                raise InvalidRequest(field, "one that has ended the engine", "another")
            return await self._tries(request, body, key)

    async def _tries(self, request: Request, body: bytes, key: str) -> Response:
        until = monotonic() + self._timeout_s
        for _ in range(TRIES):
            try:
                return await unless_gone(request, self._try(request, body, key, until))
            except TimeoutError as error:
                raise DeadlineExceeded("no engine within the server's time") from error
            except EngineLost:
                if key in self._guilty:
                    break
        raise HTTPException(502, KILLED)

    async def _try(self, request: Request, body: bytes, key: str, until: float) -> Response:
        suspected = key in self._strikes
        if suspected:
            await asyncio.wait_for(self._alone.acquire(), until - monotonic())
        self._number += 1
        number = self._number
        self._keys[number] = key

        def end() -> None:
            asyncio.get_running_loop().call_later(JUDGED_S, self._keys.pop, number, None)
            if suspected:
                self._alone.release()

        try:
            answer = await self._ask(request, body, number, until)
        except BaseException:
            end()
            raise

        def close() -> None:
            answer.close()
            end()

        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return _Stream(answer, close)
        try:
            whole = await _whole(answer)
            self._strikes.pop(key, None)
            return Response(whole, answer.status, answer.headers)
        finally:
            close()

    async def _ask(self, request: Request, body: bytes, number: int, until: float) -> Answer:
        child, reader, writer = await self._connection(until)
        connection = h11.Connection(h11.CLIENT)
        target = request.scope["raw_path"]
        if query := request.scope["query_string"]:
            target += b"?" + query
        headers = {
            "Host": "localhost",
            "Connection": "close",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            TICKET_HEADER: Ticket(number, len(body), until).header(),
        }
        head = h11.Request(method=request.method, target=target, headers=list(headers.items()))
        try:
            writer.write((connection.send(head) or b"") + body)
            events = _events(connection, reader, child)
            status, named, first = 0, dict[str, str](), b""
            async for event in events:
                if isinstance(event, h11.Response):
                    status = event.status_code
                    named = {name.decode(): value.decode() for name, value in event.headers}
                elif isinstance(event, h11.Data):
                    first = bytes(event.data)
                    break
        except BaseException:
            writer.close()
            raise
        kept = {name: value for name, value in named.items() if name in KEPT}
        return Answer(status, kept, first, _data(events), writer.close)

    async def _connection(
        self, until: float
    ) -> tuple[Child, asyncio.StreamReader, asyncio.StreamWriter]:
        if self._waiting >= self._most:
            raise Overloaded(f"{self._most} requests wait for the engine", RETRY_S)
        self._waiting += 1
        try:
            async with asyncio.timeout(until - monotonic()):
                return await self.supervisor.connect()
        finally:
            self._waiting -= 1

    def _judge(self, numbers: set[int]) -> None:
        self._ends.inc()
        keys = {self._keys[number] for number in numbers & self._keys.keys()} - {""}
        for key in keys:
            self._strikes[key] = self._strikes.get(key, 0) + 1
            if len(keys) == 1 or self._strikes[key] >= STRIKES:
                self._guilty[key] = None
                del self._strikes[key]
        _forget(self._guilty)
        _forget(self._strikes)


class _Stream(StreamingResponse):
    def __init__(self, answer: Answer, close: Callable[[], None]) -> None:
        super().__init__(self._parts(answer), answer.status, answer.headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()

    async def _parts(self, answer: Answer) -> AsyncIterator[bytes]:
        try:
            yield answer.first
            async for part in answer.rest:
                yield part
        except EngineLost:
            error = error_object(HTTPException(502, KILLED))[1]
            yield f"data: {json.dumps(error)}\n\n".encode()


async def _events(
    connection: h11.Connection, reader: asyncio.StreamReader, child: Child
) -> AsyncIterator[Any]:
    """Yield h11's events. EngineLost once it is known how the engine ended."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            try:
                data = await reader.read(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                with suppress(TimeoutError):
                    await asyncio.wait_for(child.ended.wait(), END_S)
                raise EngineLost
            connection.receive_data(data)
            continue
        yield event
        if isinstance(event, h11.EndOfMessage):
            return


async def _data(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for event in events:
        if isinstance(event, h11.Data):
            yield bytes(event.data)


async def _whole(answer: Answer) -> bytes:
    return b"".join([answer.first, *[part async for part in answer.rest]])


def _prompt(body: bytes) -> tuple[str, str]:
    given = parsed(body)
    for field in PROMPTS:
        if field in given:
            written = json.dumps([field, given[field]]).encode()
            return field, hashlib.sha256(written).hexdigest()
    return "", ""


def _forget(oldest: dict[Any, Any]) -> None:
    while len(oldest) > REMEMBERED:
        del oldest[next(iter(oldest))]
