import asyncio
import re
import socket
from contextlib import suppress
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from logitsieve.server.http.application import application
from logitsieve.server.http.listener import MAX_HEAD, MOST_RESTING, Listener
from tests.server.running import WAIT_S

LARGE = b"x" * (32 << 20)  # more than sockets hold
REQUEST, CLOSE = b"GET /metrics?a=b HTTP/1.1\r\nHost: here\r\n", b"Connection: close\r\n\r\n"
TWO_LENGTHS = (
    (
        b"POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    + REQUEST
    + CLOSE
)
POST = b"POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n"


def listener(metrics: bytes = b"metrics\n", patience_s: float = WAIT_S) -> Listener:
    return Listener(application(lambda: metrics, lambda: True), patience_s)


async def reply_to(sent: bytes, patience_s: float) -> bytes:
    """All that a client gets that sends this and then waits."""
    server = listener(patience_s=patience_s)
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
        await server.stop()


@pytest.mark.parametrize(
    ("sent", "patience_s", "answer"),
    [
        (REQUEST + CLOSE, WAIT_S, rb"HTTP/1.1 200 OK\r\n.*\r\n\r\nmetrics\n"),
        (3 * (REQUEST + b"\r\n"), 0.05, rb"(HTTP/1.1 200((?!HTTP).)*\r\n\r\nmetrics\n){3}"),
        # A head that is too long: reset while it still sends, or refused.
        (b"GET /" + b"x" * MAX_HEAD, WAIT_S, rb"(HTTP/1.1 400.*)?"),
        (b"GET / HTTP/1.1\r\n" * MAX_HEAD, WAIT_S, rb"(HTTP/1.1 400.*)?"),
        # One that comes at once is parsed before it is measured.
        (
            b"GET / HTTP/1.1\r\nHost: here\r\nx: " + b"x" * MAX_HEAD + b"\r\n\r\n",
            WAIT_S,
            b"HTTP/1.1 431.*",
        ),
        (
            b"GET /" + b"x" * MAX_HEAD + b" HTTP/1.1\r\nHost: here\r\n\r\n",
            WAIT_S,
            b"HTTP/1.1 431.*",
        ),
        (TWO_LENGTHS, WAIT_S, rb"HTTP/1.1 400((?!HTTP).)*\r\nconnection: close\r\n.*"),
        (b"", 0.05, b""),
        (b"GET / HTTP/1.1\r\n", 0.05, b""),
        # The application answers without the body, and the connection is cut all the same.
        (POST, 0.05, b"HTTP/1.1 405.*"),
    ],
    ids=[
        *("one", "several", "long_path", "long_head", "head_at_once", "path_at_once"),
        *("two_lengths", "nothing", "half_a_head", "half_a_body"),
    ],
)
async def test_what_a_client_is_answered(sent: bytes, patience_s: float, answer: bytes) -> None:
    assert re.fullmatch(answer, await reply_to(sent, patience_s), re.S)


async def test_a_client_that_does_not_read_is_dropped() -> None:
    server = listener(LARGE, patience_s=0.05)
    port = await server.start("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        client.sendall(REQUEST + b"\r\n")
        async with asyncio.timeout(WAIT_S):
            while not server.connections:
                await asyncio.sleep(0)
            while server.connections:
                await asyncio.sleep(0.001)
        await server.stop()
        assert received(client) < len(LARGE)


def received(client: socket.socket) -> int:
    """Bytes until the end, or until it is cut off."""
    total = 0
    with suppress(ConnectionResetError):
        while chunk := client.recv(1 << 20):
            total += len(chunk)
    return total


async def test_connections_that_send_nothing_keep_no_request_out() -> None:
    server = listener()
    port = await server.start("127.0.0.1", 0)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * MOST_RESTING)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST + CLOSE)
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    assert server.connections <= MOST_RESTING
    await server.stop()
    for _, each in [*silent, (reader, writer)]:
        each.close()


async def test_stopping_cuts_what_is_open() -> None:
    server = listener()
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST + b"\r\n")
    await reader.readuntil(b"metrics\n")
    await server.stop()
    writer.close()
    with suppress(ConnectionResetError):
        assert await reader.read() == b""


async def test_replies_that_are_being_made_are_waited_for() -> None:
    asked, replying = asyncio.Event(), asyncio.Event()

    async def reply(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await replying.wait()
        await PlainTextResponse("late")(scope, receive, send)

    server = Listener(reply, WAIT_S)
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST + b"\r\n")
    await asked.wait()
    await server.settle(0.01)
    asyncio.get_running_loop().call_later(0.01, replying.set)
    await server.settle(WAIT_S)
    await server.stop()
    assert (await reader.readuntil(b"late")).startswith(b"HTTP/1.1 200")
    writer.close()
