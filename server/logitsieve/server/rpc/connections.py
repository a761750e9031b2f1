"""This process's TCP connections, which gRPC neither shows nor ends."""

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

MAPPED = "::ffff:"  # IPv4 on a port of IPv6


def cut(peers: Collection[str]) -> None:
    """Shut down this process's connections to `peers`, named as gRPC names them."""
    for own in sockets():
        with suppress(OSError):  # it listens, or its peer has left
            if name_of(own.getpeername()) in peers:
                own.shutdown(socket.SHUT_RDWR)


def sockets() -> Iterator[socket.socket]:
    """Yield the TCP sockets, each with a descriptor that ends with its turn."""
    for entry in list(Path("/dev/fd").iterdir()):
        with suppress(OSError):  # no socket, or closed meanwhile
            descriptor = os.dup(int(entry.name))
            try:
                own = socket.socket(fileno=descriptor)
            except OSError:
                os.close(descriptor)
                raise
            with own:
                if own.family in (socket.AF_INET, socket.AF_INET6):
                    yield own


def name_of(address: Any) -> str:
    host, port = address[:2]
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    if host.startswith(MAPPED):
        return f"ipv4:{host.removeprefix(MAPPED)}:{port}"
    return f"ipv6:%5B{host}%5D:{port}"
