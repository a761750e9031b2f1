"""The memory and the TCP sockets of this process, which gRPC does not show (Linux only).

The kernel runs a small program (classic BPF) over every packet to a listening socket, and drops
those from refused addresses. This needs no privilege.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import struct
from collections.abc import Collection, Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

MAPPED = "::ffff:"
SO_ACCEPTCONN, SO_ATTACH_FILTER, SO_DETACH_FILTER = 30, 26, 27
LOAD_BYTE, LOAD_WORD, SHIFT_RIGHT, EQUAL, JUMP, KEEP = 0x30, 0x20, 0x74, 0x15, 0x05, 0x06
IP_HEADER, SOURCE_V4, SOURCE_V6 = 0xFFF00000, 12, 8  # SKF_NET_OFF, and offsets from there
WHOLE, NOTHING = 0xFFFFFFFF, 0
MAPPED_WORDS = [0, 0, 0xFFFF]
MOST_DROPPED = 256  # if there are more addresses, packets of all are dropped
TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
LISTENS = "0A"
INFO_BYTES, LAST_DATA_MS = 104, 52  # size of struct tcp_info, offset of tcpi_last_data_recv
Address = tuple[int, ...]  # 32 bits of IPv4, or two words with the network's 64 bits of IPv6


def cut(peers: Collection[str]) -> None:
    """Shut down this process's connections to `peers`, named as gRPC names them."""
    for own in sockets():
        with suppress(OSError):
            if name_of(own.getpeername()) in peers:
                own.shutdown(socket.SHUT_RDWR)


def sockets() -> Iterator[socket.socket]:
    """Yield the TCP sockets, each by a duplicate descriptor that is closed after its turn."""
    for entry in list(Path("/dev/fd").iterdir()):
        with suppress(OSError):
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


class Connection(NamedTuple):
    port: int
    peer: str
    silent_s: float


class OwnProcess:
    """This process, with gRPC servers that listen at `ports`.

    Its thread must act while others hold Python's lock, so frequent operations are one system call.
    """

    def __init__(self, ports: Container[int]) -> None:
        self._ports = ports
        self._sizes = os.open("/proc/self/statm", os.O_RDONLY)
        # `socket.dup` would make gRPC's sockets blocking.
        self._listening = [
            socket.socket(fileno=os.dup(own.fileno())) for own in sockets() if _listens(own, ports)
        ]

    def close(self) -> None:
        os.close(self._sizes)
        for own in self._listening:
            own.close()

    def memory(self) -> int:
        resident, shared = map(int, os.pread(self._sizes, 100, 0).split()[1:3])
        return (resident - shared) * resource.getpagesize()

    def trim(self) -> None:

        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)

    def refuse(self, addresses: Collection[Address] | None = None) -> None:
        """Let the kernel drop requests for new connections from `addresses`, or from all (None).

        OSError if the kernel does not take the program.
        """
        steps = [struct.pack("HBBI", *step) for step in dropping(addresses)]
        program = ctypes.create_string_buffer(b"".join(steps))
        filter_ = struct.pack("HL", len(steps), ctypes.addressof(program))
        for own in self._listening:
            own.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)

    def admit(self) -> None:

        for own in self._listening:
            own.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)

    def addresses(self) -> set[Address]:
        """Return the addresses that are connected to the ports, or were a moment ago."""
        found = set()
        for table in TABLES:
            if table.exists():
                for line in table.read_text().splitlines()[1:]:
                    _, here, there, state, *_ = line.split()
                    if state != LISTENS and int(here.rpartition(":")[2], 16) in self._ports:
                        found.add(_address(there.rpartition(":")[0]))
        return found

    def files(self) -> int:
        """Return the lowest free descriptor, which is about the number of open ones."""
        lowest = os.dup(self._sizes)
        os.close(lowest)
        return lowest

    def connections(self) -> list[Connection]:
        found = []
        for own in sockets():
            with suppress(OSError):
                port, peer = own.getsockname()[1], own.getpeername()
                info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
                silent_ms = struct.unpack_from("I", info, LAST_DATA_MS)[0]
                if port in self._ports:
                    found.append(Connection(port, name_of(peer), silent_ms / 1000))
        return found

    def cut(self, peers: set[str]) -> None:
        cut(peers)


def dropping(addresses: Collection[Address] | None) -> Iterator[tuple[int, int, int, int]]:
    """Yield steps: an operation, steps to skip if it is true and if false, an operand."""
    if addresses is None or len(addresses) > MOST_DROPPED:
        yield KEEP, 0, 0, NOTHING
        return
    v4 = [each for each in addresses if len(each) == 1]
    v6 = [each for each in addresses if len(each) == 2]
    yield LOAD_BYTE, 0, 0, IP_HEADER
    yield SHIFT_RIGHT, 0, 0, 4
    yield EQUAL, 1, 0, 4
    yield JUMP, 0, 0, 2 * len(v4) + 2  # to the steps for IPv6, too far for EQUAL's 8 bits
    yield LOAD_WORD, 0, 0, IP_HEADER + SOURCE_V4
    for (whole,) in v4:
        yield EQUAL, 0, 1, whole
        yield KEEP, 0, 0, NOTHING
    yield KEEP, 0, 0, WHOLE
    for high, low in v6:
        yield LOAD_WORD, 0, 0, IP_HEADER + SOURCE_V6
        yield EQUAL, 0, 3, high
        yield LOAD_WORD, 0, 0, IP_HEADER + SOURCE_V6 + 4
        yield EQUAL, 0, 1, low
        yield KEEP, 0, 0, NOTHING
    yield KEEP, 0, 0, WHOLE


def _address(digits: str) -> Address:
    """Parse an address of TABLES: words in network byte order, printed as native integers."""
    words = [socket.ntohl(int(digits[at : at + 8], 16)) for at in range(0, len(digits), 8)]
    return tuple(words[3:] if words[:3] == MAPPED_WORDS else words[:2])


def _listens(own: socket.socket, ports: Container[int]) -> bool:
    listens = own.getsockopt(socket.SOL_SOCKET, SO_ACCEPTCONN)
    return bool(listens) and own.getsockname()[1] in ports
