"""A server with its admin port, and what its versions should answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from logitsieve.client import AdminClient
from logitsieve.index import Index, open_index
from logitsieve.server import ServeConfig
from logitsieve.server.models.repository import Repository, open_configured
from logitsieve.utils.options import Progress
from tests.server.running import WAIT_S, Loop, Running, config_for, running

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@dataclass(frozen=True)
class Administered:
    run: Running
    admin: AdminClient

    def version_of(self, model: str) -> str:
        """Of what answers."""
        return self.run.client.topk(np.zeros((1, 24), np.float32), 1, model=model).answer.version

    def state_of(self, model: str) -> tuple[str, str]:
        info = self.run.client.model(model)
        return info.state, info.error

    def health_of(self, service: str) -> int:
        request = health_pb2.HealthCheckRequest(service=service)
        watch = HealthStub(self.run.channel).Watch(request, timeout=WAIT_S)
        state = int(next(watch).status)
        watch.cancel()
        return state

    def wait_health(self, service: str, state: int) -> None:
        request = health_pb2.HealthCheckRequest(service=service)
        watch = HealthStub(self.run.channel).Watch(request, timeout=WAIT_S)
        next(reply for reply in watch if reply.status == state)
        watch.cancel()


@contextmanager
def administered(
    loop: Loop, config: ServeConfig, repository: Repository | None = None
) -> Iterator[Administered]:
    with running(loop, config, repository) as run:
        address = f"127.0.0.1:{run.server.admin_port}"
        with AdminClient(address, timeout_s=WAIT_S) as admin:
            yield Administered(run, admin)


class Door:
    """Opens indexes; while it is shut, whoever wants one waits. Counts who came."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.came = 0
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self.entered, self.came = threading.Semaphore(0), 0
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def wait_entered(self) -> None:
        assert self.entered.acquire(timeout=WAIT_S)

    def __call__(self, path: Path, config: ServeConfig, progress: Progress) -> Index:
        self.came += 1
        self.entered.release()
        assert self._open.wait(WAIT_S)
        return open_configured(path, config, progress)


def config_of(models: Path, cache: Path, **options: Any) -> ServeConfig:
    return config_for(models, kernel_cache=cache, drain_s=WAIT_S, **options)


def replace_file(file: Path, content: bytes) -> None:
    """Another file of the name: what is mapped of the old one stays as it is."""
    new = file.with_name("new")
    new.write_bytes(content)
    new.replace(file)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    replace_file(file, bytes(content))


def mapped(path: Path) -> bool:
    """Whether this process has a file of a folder mapped."""
    return f"{path}/" in Path("/proc/self/maps").read_text()


def ids_by_digest(models: Path, hidden: np.ndarray, k: int) -> dict[str, bytes]:
    """What each version of "demo" answers, computed apart from the server."""
    indexes = [open_index(path) for path in sorted((models / "demo").iterdir()) if path.is_dir()]
    found = {index.digest: index.head().topk(hidden, k).ids.tobytes() for index in indexes}
    assert len(set(found.values())) == len(indexes)
    return found


def code_of(failure: grpc.RpcError) -> grpc.StatusCode:
    code: grpc.StatusCode = failure.code()
    return code
