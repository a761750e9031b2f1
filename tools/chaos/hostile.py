"""Clients that break the rules, over plain sockets: each tries again and again until a time.

HTTP/2 frames are written by hand, since libraries keep the rules. A client has a process of its
own, so that honest callers take no time from it.
"""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from struct import pack
from threading import Thread
from time import monotonic, sleep

import numpy as np

Held = list[socket.socket]  # connections that stay open between attempts
Hostile = Callable[[int, float, np.random.Generator, Held], None]  # a port, until, chance

DATA, HEADERS, RESET, SETTINGS = 0, 1, 3, 4
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW = 4  # a setting
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WORDS = b":method POST :scheme http :authority localhost content-type application/grpc te trailers"
TOP_K = b"/logitsieve.v1.Decoder/TopK"
DECODE = b"/logitsieve.v1.Decoder/Decode"
CHECK = b"/grpc.health.v1.Health/Check"
WATCH = b"/grpc.health.v1.Health/Watch"
LARGE = 12 << 20
PART = 64 << 10


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return pack(">I", len(body))[1:] + bytes([kind, flags]) + pack(">I", stream) + body


def block(path: bytes, *more: bytes) -> bytes:
    """Headers of a call, with `more` of names and values, each a literal without an index."""
    words = [bytes([len(word)]) + word for word in (b":path", path, *WORDS.split(), *more)]
    pairs = zip(words[::2], words[1::2], strict=True)
    return b"".join(b"\0" + name + value for name, value in pairs)


def call(path: bytes, stream: int) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, block(path))


def message(size: int) -> bytes:
    return b"\0" + pack(">I", size) + bytes(size)


@contextmanager
def connected(port: int, window: int | None = None, reads: bool = True) -> Iterator[socket.socket]:
    """A connection with its preface; a thread reads and drops replies."""
    with socket.create_connection(("127.0.0.1", port), 2) as connection:
        settings = b"" if window is None else pack(">HI", INITIAL_WINDOW, window)
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))
        if reads:
            Thread(target=drop, args=(connection.dup(),), daemon=True).start()
        yield connection
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def drop(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        while connection.recv(1 << 16):
            pass


def half_open(port: int, until: float, rng: np.random.Generator, held: Held) -> None:
    """Calls with headers and no message; calls with most of a large one; silent streams."""
    path, part = rng.choice([TOP_K, CHECK, DECODE]), int(rng.choice([0, PART]))
    with connected(port) as connection:
        for stream in range(1, 129, 2):
            connection.sendall(call(path, stream))
            if part:
                begun = b"\0" + pack(">I", LARGE) + bytes(part // 8)
                connection.sendall(frame(DATA, 0, stream, begun))
        while monotonic() < until:
            sleep(0.1)
            connection.sendall(frame(DATA, 0, 127, b"" if part else b"\0"))


def beyond_the_limit(port: int, until: float, rng: np.random.Generator, held: Held) -> None:
    """Whole calls without regard to the most streams of a connection, or reset at once."""
    body, resets = message(int(rng.integers(0, 2000))), bool(rng.integers(2))
    with connected(port) as connection:
        for stream in range(1, 1 << 30, 2):
            whole = call(TOP_K, stream) + frame(DATA, END_STREAM, stream, body)
            reset = frame(RESET, 0, stream, pack(">I", 8)) if resets else b""
            connection.sendall(whole + reset)
            if monotonic() > until:
                return


def large_health(port: int, until: float, rng: np.random.Generator, held: Held) -> None:
    """Messages of megabytes to a service that needs no key."""
    with connected(port) as connection:
        for stream in range(1, 33, 2):
            connection.sendall(call(CHECK, stream))
            for start in range(0, LARGE, 16 << 10):
                head = b"\0" + pack(">I", LARGE) if start == 0 else b""
                connection.sendall(frame(DATA, 0, stream, head + bytes((16 << 10) - len(head))))
                if monotonic() > until:
                    return


def watchers(port: int, until: float, rng: np.random.Generator, held: Held) -> None:
    """Health streams without end, from connections without end."""
    with connected(port) as connection:
        for stream in range(1, 201, 2):
            connection.sendall(call(WATCH, stream) + frame(DATA, END_STREAM, stream, message(0)))
        sleep(max(0.0, min(1.0, until - monotonic())))


def deaf(port: int, until: float, rng: np.random.Generator, held: Held) -> None:
    """Calls whose replies have no window."""
    with connected(port, window=0, reads=False) as connection:
        for stream in range(1, 201, 2):
            connection.sendall(call(TOP_K, stream) + frame(DATA, END_STREAM, stream, message(40)))
        sleep(max(0.0, until - monotonic()))


def crowd(port: int, until: float, rng: np.random.Generator, held: Held) -> None:
    """Hundreds of connections that send nothing."""
    while monotonic() < until and len(held) < 600:
        held.append(socket.create_connection(("127.0.0.1", port), 2))
    sleep(max(0.0, min(0.5, until - monotonic())))


def noise(port: int, until: float, rng: np.random.Generator, held: Held) -> None:
    """Bytes of no protocol, and frames that mean nothing."""
    with connected(port) as connection:
        kind = int(rng.integers(0, 12))
        connection.sendall(frame(kind, int(rng.integers(256)), 1, rng.bytes(100)) * 20)
    with socket.create_connection(("127.0.0.1", port), 2) as connection:
        connection.sendall(rng.bytes(2000))


def unfinished_bodies(port: int, until: float, rng: np.random.Generator, held: Held) -> None:
    """Requests over HTTP/1.1 that announce megabytes and stop; some leave in the middle."""
    size, leaves = 15 << 20, bool(rng.integers(2))
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    ).encode()
    while monotonic() < until and len(held) < 40:
        connection = socket.create_connection(("127.0.0.1", port), 2)
        held.append(connection)
        connection.sendall(head + b"[" * (size - 1))
    sleep(max(0.0, min(0.2, until - monotonic())))
    if leaves:
        while held:
            held.pop().close()


OF_GRPC: dict[str, Hostile] = {
    "half_open": half_open,
    "beyond_the_limit": beyond_the_limit,
    "large_health": large_health,
    "watchers": watchers,
    "deaf": deaf,
    "crowd": crowd,
    "noise": noise,
}
OF_HTTP: dict[str, Hostile] = {
    "unfinished_bodies": unfinished_bodies,
    "crowd": crowd,
    "noise": noise,
}


def attack(name: str, port: int, until: float, seed: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", __spec__.name, name, str(port), str(until), str(seed)]
    return subprocess.Popen(command)


if __name__ == "__main__":
    name, port, until, seed = sys.argv[1:]
    hostile, rng = (OF_GRPC | OF_HTTP)[name], np.random.default_rng(int(seed))
    held: Held = []
    while monotonic() < float(until):
        with suppress(OSError):  # what a server may cut off
            hostile(int(port), float(until), rng, held)
        sleep(0.01)
    for connection in held:
        connection.close()
