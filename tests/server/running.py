"""Servers for tests: small models on disk, real channels, in this process or one of their own."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc
import httpx2
import numpy as np
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from logitsieve.client import AdminClient, DecoderClient
from logitsieve.evaluation import cpu_name
from logitsieve.kernels import compile as kernels
from logitsieve.server import ServeConfig, Server, create_server
from logitsieve.server.models.repository import Repository
from tests.synthetic import make_softmax, write_heads

T = TypeVar("T")
WAIT_S = 60.0  # a test that waits this long has failed
# A busy machine may not take a call within UNSEEN_S; gRPC then ends it by CANCELLED.
ONLY_UNTAKEN = json.dumps(
    {
        "methodConfig": [
            {"name": [{"service": "logitsieve.v1.Decoder", "method": "Decode"}]},
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.5s",
                    "maxBackoff": "2s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["CANCELLED"],
                },
            },
        ]
    }
)
START_S = 240.0  # and a server that is not ready by then: a first start compiles every kernel


def write_model(models: Path, name: str = "demo", version: int = 1, **more: Any) -> Path:
    """V = 300, D = 24, lists of 20 to 60 rows: from k = 61 on the fallback answers."""
    softmax = make_softmax(seed=version)
    return write_heads(models / name / str(version), softmax, "screen", **more)


def write_whole(models: Path, name: str) -> Path:
    """A model with every head that a normalizer needs."""
    return write_heads(models / name / "1", make_softmax(), "screen", "sketch", "svd", "lsh")


def write_four(models: Path) -> Path:
    """demo@1 (stable), demo@2 (canary), other@1 with every head; demo@3 is broken."""
    write_model(models)
    write_model(models, version=2)
    write_whole(models, "other")
    (models / "demo" / "3").mkdir()
    (models / "demo" / "aliases.json").write_text(json.dumps({"stable": 1, "canary": 2}))
    return models


def entries(head: str, us: Sequence[float], low: float, **knobs: float) -> list[dict[str, Any]]:
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
            "max_error": 1.0,
            "candidates": 40.0,
            "mass_kept": low,
        }
        for rows, time in zip((1, 8, 64), us, strict=True)
    ]


def calibration(*points: list[dict[str, Any]], cpu: str = "", **more: Any) -> dict[str, Any]:
    """The measurements of a builder, on this machine unless another processor is named."""
    return {
        "machine": {"cpu": cpu or cpu_name()},
        "heldout_rows": 100,
        "points": [entry for point in points for entry in point],
        **more,
    }


# The dearest here is full at one row a call, and screen at 64.
MEASURED = calibration(
    entries("full", (9.0, 8.0, 3.0), 1.0),
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
    channel: grpc.Channel  # asks again only for calls that were not taken

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def raw(self, method: str, message: bytes) -> bytes:
        """Bytes in, bytes out; grpc.RpcError."""
        return bytes(self.channel.unary_unary(f"/logitsieve.v1.{method}")(message, timeout=WAIT_S))


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
    plain: dict[str, Any] = {"port": 0, "http_port": 0, "admin_port": 0, "shadow_share": 0.0}
    return ServeConfig(model_repository=models, **plain | {"drain_s": WAIT_S} | options)


@contextmanager
def running(
    loop: Loop, config: ServeConfig, repository: Repository | None = None
) -> Iterator[Running]:
    server = create_server(config, repository=repository)
    try:
        loop.run(server.start(), START_S)
        address = f"127.0.0.1:{server.port}"
        options = [("grpc.service_config", ONLY_UNTAKEN), ("grpc.max_send_message_length", -1)]
        with (
            DecoderClient(address, timeout_s=WAIT_S) as client,
            grpc.insecure_channel(address, options=options) as channel,
        ):
            yield Running(server, loop, client, channel)
    finally:
        loop.run(server.stop())


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@dataclass(frozen=True)
class Administered:
    run: Running
    admin: AdminClient

    def version_of(self, model: str) -> str:
        return self.run.client.topk(np.zeros((1, 24), np.float32), 1, model=model).answer.version

    def state_of(self, model: str) -> tuple[str, str]:
        info = self.run.client.model(model)
        return info.state, info.error

    def health_of(self, service: str, until: int | None = None) -> int:
        """The state of a service, at once or when it is that of `until`."""
        request = health_pb2.HealthCheckRequest(service=service)
        watch = HealthStub(self.run.channel).Watch(request, timeout=WAIT_S)
        state = next(reply.status for reply in watch if until in (None, reply.status))
        watch.cancel()
        return int(state)


@contextmanager
def administered(
    loop: Loop, config: ServeConfig, repository: Repository | None = None
) -> Iterator[Administered]:
    with running(loop, config, repository) as run:
        address = f"127.0.0.1:{run.server.admin_port}"
        with AdminClient(address, timeout_s=WAIT_S) as admin:
            yield Administered(run, admin)


SERVER = """
import json, resource, sys
from pathlib import Path
from logitsieve.server import ServeConfig, serve
options, files = json.loads(sys.argv[1]), int(sys.argv[2])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
paths = ("model_repository", "kernel_cache", "tls_cert", "tls_key", "api_key_file")
options |= {name: Path(options[name]) for name in paths if name in options}
serve(ServeConfig(**options))
"""


WHERE = r"gRPC at ([^\s,]+), metrics at ([^\s\",]+)"


def said_by(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """The first match in what a process says; AssertionError with all of it if there is none."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(pattern, line):
            return found
    raise AssertionError("".join(said) + f"exit code {process.wait(WAIT_S)}")


class Started(NamedTuple):
    process: subprocess.Popen[str]
    address: str
    metrics: str

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def has_left(self) -> bool:
        return self.process.poll() is not None

    def page(self) -> str:
        return httpx2.get(self.metrics, timeout=WAIT_S).raise_for_status().text

    def has_answered(self) -> bool:
        return re.search(r"logitsieve_rows_total\{[^}]*\} [1-9]", self.page()) is not None


@contextmanager
def process(*command: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process of Python, which is killed in the end."""
    words, env = [sys.executable, *map(str, command)], os.environ | environment
    pipes: Any = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes, text=True, env=env) as made:
        try:
            yield made
        finally:
            made.kill()


@contextmanager
def started(
    models: Path, *, files: int = 0, environment: Mapping[str, str] = {}, **options: Any
) -> Iterator[Started]:
    """A server that answers; `files` are the descriptors that it may have, where not 0."""
    given = {"port": 0, "http_port": 0, "admin": False, "model_repository": models} | options
    written = json.dumps(given | {"kernel_cache": kernels.default_cache()}, default=str)
    with process("-c", SERVER, written, files, **environment) as made:
        found = said_by(made, WHERE)
        yield Started(made, found[1], found[2])
