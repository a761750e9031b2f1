"""Servers for tests: small models on disk, a loop of their own, real channels."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from logitsieve.client import DecoderClient
from logitsieve.evaluation import cpu_name
from logitsieve.index import HeadEntry, write_index
from logitsieve.server import ServeConfig, Server, create_server
from logitsieve.server.models.repository import Repository
from tests.synthetic import certified_arrays, make_softmax, screen_arrays, svd_arrays

T = TypeVar("T")
WAIT_S = 60.0  # a test that waits this long has failed
START_S = 240.0  # and a server that is not ready by then: a first start compiles every kernel


def write_model(models: Path, name: str = "demo", version: int = 1, **more: Any) -> Path:
    """V = 300, D = 24, lists of 20 to 60 rows: from k = 61 on the fallback answers."""
    softmax = make_softmax(seed=version)
    return write_index(
        models / name / str(version),
        softmax=softmax,
        parts={"screen": screen_arrays(softmax)},
        heads={"exact": HeadEntry(), "screen": HeadEntry("screen", {"probes": 1})},
        default_head="screen",
        **more,
    )


def write_whole(models: Path, name: str) -> Path:
    """One with every head that a normalizer needs."""
    softmax = make_softmax()
    return write_index(
        models / name / "1",
        softmax=softmax,
        parts={
            "screen": screen_arrays(softmax),
            "sketch": certified_arrays(softmax),
            "svd": svd_arrays(softmax),
        },
        heads={
            "exact": HeadEntry(),
            "screen": HeadEntry("screen", {"probes": 1}),
            "certified": HeadEntry("sketch"),
            "svd": HeadEntry("svd"),
        },
        default_head="screen",
    )


def entries(
    head: str, us: tuple[float, float, float], low: float, **knobs: float
) -> list[dict[str, Any]]:
    """A point as calibration.json has it, timed at 1, 8 and 64 rows; `low` at every k."""
    ks = ("1", "5", "10")
    return [
        {
            "head": {"name": head, "knobs": knobs},
            "rows": rows,
            "us_per_row": time,
            "precision_at": dict.fromkeys(ks, low),
            "precision": {k: {"mean": low, "low": low} for k in ks},
            "uneven": False,
            "candidates": 40.0,
            "mass_kept": low,
        }
        for rows, time in zip((1, 8, 64), us, strict=True)
    ]


def calibration(*points: list[dict[str, Any]], cpu: str = "", **more: Any) -> dict[str, Any]:
    """What a builder would have measured, on this processor unless another is named."""
    return {
        "machine": {"cpu": cpu or cpu_name()},
        "heldout_rows": 100,
        "points": [entry for point in points for entry in point],
        "compared": [],
        **more,
    }


# The dearest here is exact at one row a call, and screen at 64.
MEASURED = calibration(
    entries("exact", (9.0, 8.0, 3.0), 1.0),
    entries("screen", (1.0, 1.0, 4.0), 0.9, probes=1),
    entries("screen", (2.0, 2.0, 5.0), 0.99, probes=3),
)


def requests_total(rpc: str, model: str, code: str, version: str = "", alias: str = "") -> str:
    """The series of these labels, as /metrics names it."""
    labels = {"alias": alias, "code": code, "model": model, "rpc": rpc, "version": version}
    shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"logitsieve_requests_total{{{shown}}}"


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], within_s: float = WAIT_S) -> T:
        return self.start(work).result(within_s)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()


@dataclass(frozen=True)
class Running:
    server: Server
    loop: Loop
    client: DecoderClient
    channel: grpc.Channel  # without retries

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def raw(self, method: str, message: bytes, *, timeout: float = WAIT_S) -> bytes:
        """Bytes in, bytes out; grpc.RpcError."""
        call = self.channel.unary_unary(f"/logitsieve.v1.{method}")
        return bytes(call(message, timeout=timeout))


def lasting_port() -> int:
    """A free port to come back to: none of those that systems lend to clients in the meantime."""
    for port in range(20_000, 32_768):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def config_for(models: Path, **options: Any) -> ServeConfig:
    """Free ports; nothing is shadowed unless asked: whose rows are is drawn by chance."""
    plain: dict[str, Any] = {"port": 0, "metrics_port": 0, "admin_port": 0, "shadow_share": 0.0}
    return ServeConfig(models=models, **plain | options)


@contextmanager
def running(
    loop: Loop, config: ServeConfig, repository: Repository | None = None
) -> Iterator[Running]:
    server = create_server(config, repository=repository)
    try:
        loop.run(server.start(), START_S)
        address = f"127.0.0.1:{server.port}"
        options = [("grpc.enable_retries", 0), ("grpc.max_send_message_length", -1)]
        with (
            DecoderClient(address, timeout_s=WAIT_S) as client,
            grpc.insecure_channel(address, options=options) as channel,
        ):
            yield Running(server, loop, client, channel)
    finally:
        loop.run(server.stop())
