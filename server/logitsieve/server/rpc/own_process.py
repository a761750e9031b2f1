"""The memory of this process, and its TCP sockets, which gRPC does not show; on Linux."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import struct
from collections.abc import Container
from contextlib import suppress
from typing import NamedTuple

from logitsieve.server.rpc.connections import cut, name_of, sockets

SO_ACCEPTCONN, SO_ATTACH_FILTER, SO_DETACH_FILTER = 30, 26, 27
PROGRAM = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: keep 0 bytes
DROP_ALL = struct.pack("HL", 1, ctypes.addressof(PROGRAM))  # of one instruction
INFO_BYTES, LAST_DATA_MS = 104, 52  # struct tcp_info, its tcpi_last_data_recv


class Connection(NamedTuple):
    port: int
    peer: str
    silent_s: float  # since it brought data


class OwnProcess:
    """A process with gRPC servers that listen at `ports`.

    It is made for a thread that must act while others hold Python's lock: frequent operations
    are one system call each.
    """

    def __init__(self, ports: Container[int]) -> None:
        self._ports = ports
        self._sizes = os.open("/proc/self/statm", os.O_RDONLY)
        # Not by `socket.dup`, which would let gRPC's own `accept` block.
        self._listening = [
            socket.socket(fileno=os.dup(own.fileno())) for own in sockets() if _listens(own, ports)
        ]

    def close(self) -> None:
        os.close(self._sizes)
        for own in self._listening:
            own.close()

    def memory(self) -> int:
        """Return bytes in memory that no file holds."""
        resident, shared = map(int, os.pread(self._sizes, 100, 0).split()[1:3])
        return (resident - shared) * resource.getpagesize()

    def trim(self) -> None:
        """Give freed memory back, if the C library can."""
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)

    def refuse(self, refusing: bool) -> None:
        """Let the kernel drop all packets that ask for a connection, or none. OSError."""
        for own in self._listening:
            if refusing:
                own.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, DROP_ALL)
            else:
                own.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)

    def files(self) -> int:
        """Return the lowest free descriptor, which is about the number of open ones."""
        lowest = os.dup(self._sizes)
        os.close(lowest)
        return lowest

    def connections(self) -> list[Connection]:
        found = []
        for own in sockets():
            with suppress(OSError):  # it listens, or its peer has left
                port, peer = own.getsockname()[1], own.getpeername()
                info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
                silent_ms = struct.unpack_from("I", info, LAST_DATA_MS)[0]
                if port in self._ports:
                    found.append(Connection(port, name_of(peer), silent_ms / 1000))
        return found

    def cut(self, peers: set[str]) -> None:
        cut(peers)


def _listens(own: socket.socket, ports: Container[int]) -> bool:
    listens = own.getsockopt(socket.SOL_SOCKET, SO_ACCEPTCONN)
    return bool(listens) and own.getsockname()[1] in ports
