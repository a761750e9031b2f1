import asyncio
import socket

import pytest

from logitsieve.server.http.application import application
from logitsieve.server.http.listener import MAX_HEAD, MOST_RESTING, Listener
from tests.server.running import WAIT_S

LARGE = b"x" * (32 << 20)  # more than sockets hold
REQUEST = b"GET /metrics?a=b HTTP/1.1\r\nHost: here\r\n"


def listener(metrics: bytes = b"metrics\n", patience_s: float = WAIT_S) -> Listener:
    return Listener(application(lambda: metrics, lambda: True), patience_s)


async def reply_to(sent: bytes, *, patience_s: float = WAIT_S) -> bytes:
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


def test_a_page_comes_whole() -> None:
    reply = asyncio.run(reply_to(REQUEST + b"Connection: close\r\n\r\n"))
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert reply.endswith(b"\r\n\r\nmetrics\n")


def test_a_connection_answers_one_request_after_the_other() -> None:
    reply = asyncio.run(reply_to(3 * (REQUEST + b"\r\n"), patience_s=0.05))
    assert reply.count(b"\r\n\r\nmetrics\n") == 3


@pytest.mark.parametrize("sent", [b"GET /" + b"x" * MAX_HEAD, b"GET / HTTP/1.1\r\n" * MAX_HEAD])
def test_a_head_that_is_too_long(sent: bytes) -> None:
    reply = asyncio.run(reply_to(sent))
    assert reply == b"" or reply.startswith(b"HTTP/1.1 400")  # reset while it still sends


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n"])
def test_a_head_that_does_not_end(sent: bytes) -> None:
    assert asyncio.run(reply_to(sent, patience_s=0.05)) == b""


def test_a_body_that_does_not_end() -> None:
    """The application answers without it, and the connection is cut all the same."""
    sent = b"POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n"
    assert asyncio.run(reply_to(sent, patience_s=0.05)).startswith(b"HTTP/1.1 405")


def test_a_client_that_does_not_read_is_dropped() -> None:
    async def run() -> int:
        server = listener(LARGE, patience_s=0.05)
        port = await server.start("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
            client.sendall(REQUEST + b"\r\n")
            async with asyncio.timeout(WAIT_S):
                await until_dropped(server)
            await server.stop()
            return received(client)

    assert asyncio.run(run()) < len(LARGE)


async def until_dropped(server: Listener) -> None:
    while not server.connections:
        await asyncio.sleep(0)
    while server.connections:
        await asyncio.sleep(0.001)


def received(client: socket.socket) -> int:
    """Bytes until the end, or until it is cut off."""
    total = 0
    try:
        while chunk := client.recv(1 << 20):
            total += len(chunk)
    except ConnectionResetError:
        pass
    return total


def test_connections_that_send_nothing_keep_no_request_out() -> None:
    async def run() -> bytes:
        server = listener()
        port = await server.start("127.0.0.1", 0)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * MOST_RESTING)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST + b"Connection: close\r\n\r\n")
        reply = await reader.read()
        assert server.connections <= MOST_RESTING
        await server.stop()
        for _, each in [*silent, (reader, writer)]:
            each.close()
        return reply

    assert asyncio.run(run()).startswith(b"HTTP/1.1 200")


def test_stopping_cuts_what_is_open() -> None:
    async def run() -> bytes:
        server = listener()
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST + b"\r\n")
        await reader.readuntil(b"metrics\n")
        await server.stop()
        writer.close()
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""

    assert asyncio.run(run()) == b""
