"""Clients that break HTTP/2's rules: memory stays bounded, and others are answered after it."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from socket import create_connection
from struct import pack
from threading import Thread
from time import monotonic
from typing import Any

import httpx2
import numpy as np
import pytest

from logitsieve.client import DecoderClient
from tests.server.materials import write_api_keys
from tests.server.running import WAIT_S, started, write_model
from tests.server.test_memory import memory_mb
from tools.chaos import hostile
from tools.chaos.hostile import DATA, END_STREAM, SETTINGS, call, drop, frame, message

pytestmark = pytest.mark.system

FLOOD_S = 4.0
ACK = 1
MESSAGE = message(1100)


def whole_call(stream: int) -> bytes:
    return call(hostile.TOP_K, stream) + frame(DATA, END_STREAM, stream, MESSAGE)


def reset_call(stream: int) -> bytes:
    return whole_call(stream) + frame(hostile.RESET, 0, stream, pack(">I", 8))


def flood(
    port: int,
    until: float,
    made: Callable[[int], bytes],
    calls: int | None,
    settings: bytes,
    source: str = "127.0.0.1",
) -> None:
    """Open one connection after another, each for `calls`, or until the server ends it."""
    to, by = ("127.0.0.1", port), (source, 0)
    while monotonic() < until:
        with suppress(OSError), create_connection(to, 2, by) as connection:
            connection.sendall(hostile.PREFACE + settings)
            Thread(target=drop, args=(connection,), daemon=True).start()
            for number in range(calls) if calls else count():
                if monotonic() > until:
                    break
                connection.sendall(made(2 * number + 1))


ASKED, AGREED = frame(SETTINGS, 0, 0), frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0)
FLOODS: dict[str, tuple[Callable[[int], bytes], int | None, bytes]] = {
    "beyond the limit of a connection": (whole_call, None, ASKED),
    "reset after whole requests": (reset_call, None, AGREED),
    "within the limit, again and again": (whole_call, 100, AGREED),
}


@pytest.mark.parametrize(
    ("kind", "clients", "most_mb"),
    [
        ("beyond the limit of a connection", 1, 200),
        ("reset after whole requests", 1, 200),
        pytest.param(*("within the limit, again and again", 1, 300), marks=pytest.mark.exhaustive),
        ("within the limit, again and again", 4, 450),  # 16 KiB for each call of 256 connections
    ],
)
def test_memory_is_bounded_and_others_are_answered(
    kind: str, clients: int, most_mb: int, tmp_path: Path
) -> None:
    write_model(tmp_path / "models")
    hidden_states = np.ones((1, 24), np.float32)
    api_key = "t" * 20
    api_keys: dict[str, Any] = {"api_key_file": write_api_keys(tmp_path, f"read:{api_key}")}
    with (
        started(tmp_path / "models", **api_keys if clients > 1 else {}) as server,
        DecoderClient(server.address, timeout_s=WAIT_S, api_key=api_key) as client,
        ThreadPoolExecutor(clients) as pool,
    ):
        client.topk(hidden_states, k=1)
        before = memory_mb(server.process.pid)["VmRSS"]
        until = monotonic() + FLOOD_S
        floods = [pool.submit(flood, server.port, until, *FLOODS[kind]) for _ in range(clients)]
        client.topk(hidden_states, k=1)  # by a connection that is open
        for each in floods:
            each.result(WAIT_S)
        more = memory_mb(server.process.pid)["VmHWM"] - before
        print(f"\n{kind}, {clients} clients: {more:.0f} MiB more")
        assert more < most_mb
        client.topk(hidden_states, k=1)
        with DecoderClient(server.address, timeout_s=WAIT_S, api_key=api_key) as other:
            other.topk(hidden_states, k=1)


def test_idle_connections_leave_files_for_probes_and_open_ones(tmp_path: Path) -> None:
    """Without them it answers new ones as before, and leaves as it is told."""
    write_model(tmp_path / "models")
    hidden_states = np.ones((1, 24), np.float32)
    with started(tmp_path / "models", files=256) as server:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with DecoderClient(server.address, timeout_s=WAIT_S, options=options) as client:
            expected = client.topk(hidden_states, k=5).ids.tolist()
            idle = [create_connection(("127.0.0.1", server.port)) for _ in range(300)]
            cut = [each for each in idle if each.recv(1) == b""]
            probe = httpx2.get(server.metrics.replace("/metrics", "/healthz"), timeout=WAIT_S)
            assert probe.status_code == 200
            assert client.topk(hidden_states, k=5).ids.tolist() == expected
            for each in idle:
                each.close()
        assert cut
        with DecoderClient(server.address, timeout_s=WAIT_S, options=options) as another:
            assert another.topk(hidden_states, k=5).ids.tolist() == expected
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=WAIT_S)
    assert server.process.returncode == 0
