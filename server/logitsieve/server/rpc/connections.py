"""Ends TCP connections, which gRPC has no call for: a reply that is not taken would stay."""

import os
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

MAPPED = "::ffff:"  # IPv4 on a port of IPv6


def cut(peers: Collection[str]) -> None:
    """Shut down this process's connections to `peers`, named as gRPC names them."""
    for entry in Path("/dev/fd").iterdir():
        with suppress(OSError):  # no socket, or closed meanwhile
            descriptor = os.dup(int(entry.name))
            try:
                _shut(descriptor, peers)
            finally:
                os.close(descriptor)


def name_of(address: Any) -> str:
    host, port = address[:2]
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    if host.startswith(MAPPED):
        return f"ipv4:{host.removeprefix(MAPPED)}:{port}"
    return f"ipv6:%5B{host}%5D:{port}"


def _shut(descriptor: int, peers: Collection[str]) -> None:
    connection = socket.socket(fileno=descriptor)
    try:
        internet = connection.family in (socket.AF_INET, socket.AF_INET6)
        if internet and name_of(connection.getpeername()) in peers:
            connection.shutdown(socket.SHUT_RDWR)
    finally:
        connection.detach()
