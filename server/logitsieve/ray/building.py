import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

import ray
from logitsieve.api.errors import BuildFailed, InvalidRequest
from logitsieve.index_builder.workers import SharingExecutor
from logitsieve.version import __version__
from ray.exceptions import RayError, RayTaskError

R = TypeVar("R")

RETRIES = 5
ADDRESSES = "auto (the cluster of this machine), HOST:PORT of a head node"
REACHED_S = 5.0  # Ray itself would wait for minutes, then end the process


class RayFailed(BuildFailed, BrokenExecutor):
    """Ray lost a task, because its workers were killed or the cluster is gone."""


class RayExecutor(SharingExecutor):
    """Runs calls as tasks on the connected cluster, each with `cpus` of a node."""

    def __init__(self, cpus: float = 1.0) -> None:
        if not ray.is_initialized():
            raise InvalidRequest("ray", "no connection", "ray.init() or `connected` before")
        self._cpus = cpus
        self._task = ray.remote(_run).options(num_cpus=cpus, max_retries=RETRIES)

    @property
    def workers(self) -> int:
        resources: dict[str, float] = ray.cluster_resources()
        return max(1, int(resources.get("CPU", 0) // self._cpus))

    def share(self, array: np.ndarray) -> Any:
        return ray.put(array)

    def submit(self, call: Callable[..., R], /, *args: Any, **options: Any) -> Future[R]:
        reference = self._task.remote(__version__, call, *args, **options)
        future: Future[R] = Future()

        def end(done: Future[R]) -> None:
            if not future.set_running_or_notify_cancel():
                return
            match done.exception():
                case None:
                    future.set_result(done.result())
                case RayTaskError(cause=BaseException() as cause):
                    future.set_exception(cause)
                case RayError() as error:
                    reason = str(error).splitlines()[0]
                    future.set_exception(RayFailed(f"ray: {type(error).__name__}: {reason}"))
                case error:
                    future.set_exception(error)

        reference.future().add_done_callback(end)
        future.add_done_callback(lambda ended: _cancel(reference) if ended.cancelled() else None)
        return future


def _cancel(reference: Any) -> None:
    if ray.is_initialized():
        ray.cancel(reference)


def _run(version: str, call: Callable[..., R], /, *args: Any, **options: Any) -> R:
    if version != __version__:
        raise InvalidRequest("ray", f"a worker with logitsieve {__version__}", version)
    return call(*args, **options)


@contextmanager
def connected(address: str) -> Iterator[RayExecutor]:
    """Yield an executor on the cluster at `address`. InvalidRequest.

    "local" starts a cluster, which ends with the block.
    """
    connect("ray", address, f"{ADDRESSES}, or local (a new one)", known=("auto", "local"))
    try:
        yield RayExecutor()
    finally:
        ray.shutdown()


def connect(
    field: str, address: str, allowed: str = ADDRESSES, known: tuple[str, ...] = ("auto",)
) -> None:
    """Connect to HOST:PORT, or to a name that is `known` to Ray. InvalidRequest names `field`."""
    if address not in known:
        _require_reached(field, address, allowed)
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidRequest(field, f"{address} ({reason})", allowed) from error


def _require_reached(field: str, address: str, allowed: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InvalidRequest(field, repr(address), allowed)
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED_S).close()
    except OSError as error:
        raise InvalidRequest(field, f"{address} ({error})", allowed) from error
