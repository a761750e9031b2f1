"""A `logitsieve serve` in a process of its own: started, awaited and always stopped."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import NamedTuple

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

PROGRAM = Path(sys.executable).with_name("logitsieve")
START_S = 90.0  # compiling every kernel on a slow machine included
HEALTH_S = 10.0
STOP_S = 10.0
ANNOUNCED = "gRPC at "
CONSOLE = ", console at "


class Addresses(NamedTuple):
    """Addresses of a server."""

    grpc: str
    console: str  # to open in a browser


class NotServing(Exception):
    """The server did not start; the message holds its output."""


@contextmanager
def serving(models: Path, label: str, start_s: float = START_S) -> Iterator[Addresses]:
    """Yield the addresses of a server of the folder `models`, once `label` is SERVING.

    NotServing if it fails or takes longer than `start_s` seconds.
    """
    ports = ["--port", "0", "--http-port", "0", "--no-admin", "--drain-s", "1"]
    process = subprocess.Popen(
        [PROGRAM, "serve", "--model-repository", models, *ports], stderr=subprocess.PIPE, text=True
    )
    try:
        addresses = _announced(process, start_s)
        _require_serving(addresses.grpc, label)
        yield addresses
    finally:
        _stop(process)


def _announced(process: subprocess.Popen[str], start_s: float) -> Addresses:
    """Return the addresses that the server prints; it is killed when time is up."""
    assert process.stderr is not None
    said = []
    timer = Timer(start_s, process.kill)
    timer.start()
    try:
        for line in process.stderr:
            said.append(line)
            if line.startswith(ANNOUNCED):
                grpc_at = line.removeprefix(ANNOUNCED).partition(",")[0]
                return Addresses(grpc_at, line.partition(CONSOLE)[2].strip())
    finally:
        timer.cancel()
    raise NotServing(f"within {start_s:g} s the server only said: {''.join(said) or 'nothing'}")


def _require_serving(address: str, label: str) -> None:
    with grpc.insecure_channel(address) as channel:
        try:
            reply = HealthStub(channel).Check(HealthCheckRequest(service=label), timeout=HEALTH_S)
        except grpc.RpcError as error:
            raise NotServing(f"{label}: {error.details()}") from error
    if reply.status != HealthCheckResponse.SERVING:
        raise NotServing(f"{label}: {HealthCheckResponse.ServingStatus.Name(reply.status)}")


def _stop(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM, then SIGKILL if it does not end."""
    process.terminate()
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
