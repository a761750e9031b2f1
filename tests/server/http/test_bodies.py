"""Bodies that do not end, that are too many, or whose client leaves."""

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from logitsieve.api.errors import Overloaded, RequestTooLarge, Unavailable
from logitsieve.server.http.listener import PART, Bodies, Listener, read_body
from tests.server.running import WAIT_S

SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "headers": []}


def request(address: str, parts: asyncio.Queue[bytes | None]) -> Request:
    """One whose body comes from a queue; None: the client leaves."""

    async def receive() -> dict[str, Any]:
        part = await parts.get()
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": part != b""}

    return Request(SCOPE | {"client": (address, 1)}, receive)


def whole(address: str, size: int) -> Request:
    parts = asyncio.Queue[bytes | None]()
    for part in (*[b"x" * PART] * (size // PART), b"x" * (size % PART), b""):
        parts.put_nowait(part)
    return request(address, parts)


async def read(bodies: Bodies, asked: Request, most: int = 100 * PART) -> int:
    async with bodies.hold(asked, most) as body:
        return len(body)


async def test_bodies_are_limited_together_and_by_address() -> None:
    bodies = Bodies(WAIT_S, most=5 * PART, share=3 * PART)
    async with bodies.hold(whole("a", 4 * PART), 4 * PART):
        with pytest.raises(Overloaded, match="one address"):
            await read(bodies, whole("a", 2 * PART))
        assert await read(bodies, whole("a", PART)) == PART  # the first part counts for nothing
        async with bodies.hold(whole("b", 3 * PART), 4 * PART):
            assert bodies.bytes == 3 * PART + 2 * PART
            with pytest.raises(Unavailable, match="requests have"):
                await read(bodies, whole("c", 2 * PART))
    assert await read(bodies, whole("a", 4 * PART)) == 4 * PART
    with pytest.raises(RequestTooLarge):
        await read(bodies, whole("a", 4 * PART), PART)
    assert not bodies._held
    assert not bodies.bytes


async def test_each_part_has_its_time_and_what_failed_is_given_back() -> None:
    bodies, parts = Bodies(0.05, most=2 * PART), asyncio.Queue[bytes | None]()
    for part in (b"x" * PART, b"x" * PART, b"x"):
        parts.put_nowait(part)
    with pytest.raises(HTTPException) as caught:
        await read(bodies, request("a", parts))
    assert caught.value.status_code == 408
    assert f"got {2 * PART + 1} bytes" in caught.value.detail
    parts.put_nowait(None)
    with pytest.raises(ClientDisconnect):
        await read(bodies, request("a", parts))
    assert not bodies._held
    assert not bodies.bytes


async def test_the_port_holds_its_own_bodies() -> None:
    statuses = []

    async def answer(asked: Request) -> Response:
        try:
            return PlainTextResponse(str(len(await read_body(asked, 1 << 20))))
        except HTTPException as error:
            statuses.append(error.status_code)
            raise

    listener = Listener(Starlette(routes=[Route("/", answer, methods=["POST"])]), 0.05, WAIT_S)
    port = await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\nhalf")
    reply = await reader.read()  # to the end: the connection is closed
    assert reply.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in reply.lower()
    assert statuses == [408]
    writer.close()
    await listener.stop()
