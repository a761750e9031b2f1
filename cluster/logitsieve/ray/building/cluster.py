"""A connection of this process to a cluster of Ray."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from logitsieve.api.errors import InvalidRequest
from logitsieve.ray.building.executor import RayExecutor

ADDRESSES = "auto (the cluster of this machine), HOST:PORT of a head node"
REACHED_S = 5.0  # Ray itself would wait for minutes and end the process


@contextmanager
def connected(address: str) -> Iterator[RayExecutor]:
    """Connect to the cluster at `address` and yield an executor on it.

    "local" starts a cluster here, which ends with the block. InvalidRequest names an address
    without a cluster.
    """
    connect("ray", address, f"{ADDRESSES}, or local (a new one)", known=("auto", "local"))
    try:
        yield RayExecutor()
    finally:
        ray.shutdown()


def connect(
    field: str, address: str, allowed: str = ADDRESSES, known: tuple[str, ...] = ("auto",)
) -> None:
    """Connect to the cluster at HOST:PORT, or at a name `known` to Ray.

    InvalidRequest naming `field` if there is none.
    """
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
    """InvalidRequest naming `field` unless something listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InvalidRequest(field, repr(address), allowed)
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED_S).close()
    except OSError as error:
        raise InvalidRequest(field, f"{address} ({error})", allowed) from error
