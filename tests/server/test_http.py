from __future__ import annotations

import asyncio
import socket

import pytest

from logitsieve.server.http import MAX_HEAD, HttpServer
from tests.server.running import WAIT_S

LARGE = b"x" * (32 << 20)  # more than sockets hold


async def asked(sent: bytes, *, patience_s: float = WAIT_S) -> bytes:
    """What a client gets that sends this and then waits."""
    server = HttpServer(lambda: b"metrics\n", lambda: True, patience_s)
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
    reply = asyncio.run(asked(b"GET /metrics?a=b HTTP/1.1\r\nHost: here\r\n\r\n"))
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert reply.endswith(b"\r\n\r\nmetrics\n")


@pytest.mark.parametrize("sent", [b"GET /" + b"x" * MAX_HEAD, b"GET / HTTP/1.1\r\n" * MAX_HEAD])
def test_a_head_that_is_too_long(sent: bytes) -> None:
    assert asyncio.run(asked(sent)) == b""


def test_a_head_that_does_not_end() -> None:
    assert asyncio.run(asked(b"GET / HTTP/1.1\r\n", patience_s=0.05)) == b""


def test_a_client_that_does_not_read_is_dropped() -> None:
    async def run() -> int:
        answering: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()

        def metrics() -> bytes:
            answering.set_result(asyncio.current_task())  # type: ignore[arg-type]  # there is one
            return LARGE

        server = HttpServer(metrics, lambda: True, patience_s=0.05)
        port = await server.start("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            done, _ = await asyncio.wait({await answering}, timeout=WAIT_S)
            assert done
            await server.stop()
            return received(client)

    assert asyncio.run(run()) < len(LARGE)


def received(client: socket.socket) -> int:
    """Bytes until the end, or until it is cut off."""
    total = 0
    try:
        while chunk := client.recv(1 << 20):
            total += len(chunk)
    except ConnectionResetError:
        pass
    return total
