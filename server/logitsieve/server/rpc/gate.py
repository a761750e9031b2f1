"""Holds back new gRPC connections while the open ones fill the memory.

gRPC buffers up to `max_connection_calls` calls of each connection before this server sees them, so
a client that reconnects again and again brings more than the event loop can refuse. While the
process has grown too much, the kernel drops packets that ask for a new connection; their senders
repeat them after a second or more.

Addresses without a connection, such as those of probes, hold none of the memory. They are admitted
again at once, until it grows by as much again.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from threading import Event, Thread
from time import monotonic
from typing import Protocol

from logitsieve.server.logs import event
from logitsieve.server.rpc.own_process import Address, Connection
from logitsieve.server.rpc.ports import UNSEEN_S

log = logging.getLogger(__name__)

LOOK_S = 0.02
GROWTH = 48 << 20  # bytes allowed beyond the memory at rest and the counted messages
BURST = 40
HOLD_S = UNSEEN_S + 0.5  # by then gRPC has dropped the calls that were never accepted
PATIENCE_S = 10.0  # memory still in use by then belongs to the server itself
COUNT_S = 1.0
SILENT_S = 5.0
ROOM = 8  # one in ROOM connections is kept free


class Process(Protocol):
    def memory(self) -> int: ...
    def trim(self) -> None: ...
    def refuse(self, addresses: Collection[Address] | None = None) -> None: ...
    def admit(self) -> None: ...
    def addresses(self) -> set[Address]: ...
    def files(self) -> int: ...
    def connections(self) -> list[Connection]: ...
    def cut(self, peers: set[str]) -> None: ...
    def close(self) -> None: ...


class Gate:
    """Watches a process with at most `most` connections per port, on a thread of its own.

    `expected` returns the bytes of requests that are counted elsewhere, `others` the number of
    connections to other ports.
    """

    def __init__(
        self,
        process: Process,
        most: int,
        expected: Callable[[], int] = lambda: 0,
        others: Callable[[], int] = lambda: 0,
    ) -> None:
        self._process, self._most, self._expected, self._others = process, most, expected, others
        self._at_rest, self._files = process.memory(), self._connected()
        self._closed_at: float | None = None
        self._to_all = False  # closed to unconnected addresses, too
        self._trim_at = self._count_at = 0.0
        self._ended = Event()
        self._thread = Thread(target=self._watch, name="gate", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._closed_at is not None:
            self._process.admit()
        self._process.close()

    def settle(self) -> None:
        self._at_rest = self._process.memory()

    def look(self, now: float) -> None:
        size, files = self._process.memory(), self._connected()
        self._at_rest = min(self._at_rest, size)
        if now >= self._count_at:
            self._files, self._count_at = files, now + COUNT_S
            if files > self._most - self._most // ROOM:
                self._make_room()
        reason, grown = "", size - self._at_rest - self._expected()
        if grown > GROWTH * (1 if self._closed_at is None else 2):
            reason = f"the process has grown by {size - self._at_rest >> 20} MiB"
        elif files > self._files + BURST:
            reason = f"{files - self._files} came within a second"
        if reason and not self._to_all:
            self._close(now, reason)
        elif self._closed_at is not None and now >= self._trim_at:
            self._trim(now)

    def _close(self, now: float, reason: str) -> None:
        """Close the gate to connected addresses; if it is closed to them already, to all."""
        self._process.refuse()  # at once, since `addresses` takes time
        self._to_all = self._closed_at is not None
        if not self._to_all:
            with suppress(OSError):
                self._process.refuse(self._process.addresses())
        self._files = self._connected()
        self._closed_at, self._trim_at = now, now + HOLD_S
        message = f"new gRPC connections wait: {reason}"
        event(log, logging.WARNING, "gate_closed", message, reason=reason)

    def _trim(self, now: float) -> None:
        """Open the gate if the memory has been freed, or apparently never will be."""
        self._process.trim()
        size = self._process.memory()
        fits = size <= self._at_rest + GROWTH + self._expected()
        assert self._closed_at is not None
        if fits or now >= self._closed_at + PATIENCE_S:
            self._process.admit()
            self._closed_at, self._to_all, self._files = None, False, self._connected()
            self._at_rest = max(self._at_rest, size - GROWTH // 2)
            event(log, logging.INFO, "gate_open", "new gRPC connections are accepted again")
        self._trim_at = now + HOLD_S

    def _make_room(self) -> None:
        """Close the connections of a nearly full port that have been silent longest."""
        by_port: defaultdict[int, list[Connection]] = defaultdict(list)
        for connection in self._process.connections():
            by_port[connection.port].append(connection)
        kept, silent = self._most - self._most // ROOM, set()
        for connections in by_port.values():
            connections.sort(key=lambda connection: connection.silent_s)
            silent |= {each.peer for each in connections[kept:] if each.silent_s >= SILENT_S}
        if silent:
            self._process.cut(silent)

    def _connected(self) -> int:
        return self._process.files() - self._others()

    def _watch(self) -> None:
        try:
            while not self._ended.wait(LOOK_S):
                self.look(monotonic())
        except OSError as error:
            message = f"new gRPC connections are not held back here: {error}"
            event(log, logging.WARNING, "gate_lost", message, error=str(error))
