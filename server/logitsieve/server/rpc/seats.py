from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from logitsieve.api.errors import Overloaded
from logitsieve.server.rpc.intake import RETRY_S, address_of


@dataclass(eq=False)
class Seat:
    peer: str
    address: str
    task: asyncio.Task[Any]
    busy: int = 0
    quiet_ns: int = field(default_factory=perf_counter_ns)
    displaced: bool = False


class Seats:
    """At most `most` open streams.

    When all are taken, an idle one gives way to a client that would still have fewer. It is taken
    from the address with the most streams, and there from the connection with the most.
    """

    def __init__(self, what: str, most: int) -> None:
        self._what, self._most = what, most
        self._taken: set[Seat] = set()

    @contextmanager
    def taken(self, peer: str) -> Iterator[Seat]:
        """Hold a place for this task. Overloaded if there is none, or once it has to give way."""
        task = asyncio.current_task()
        assert task is not None
        seat = Seat(peer, address_of(peer), task)
        if len(self._taken) >= self._most:
            self._make_room(seat)
        self._taken.add(seat)
        try:
            yield seat
        except asyncio.CancelledError:
            if not seat.displaced:
                raise
            task.uncancel()
            message = f"this one gave way to another client's: {self._most} {self._what} are open"
            raise Overloaded(message, RETRY_S) from None
        finally:
            self._taken.discard(seat)

    def _make_room(self, new: Seat) -> None:
        addresses = Counter(seat.address for seat in self._taken)
        peers = Counter(seat.peer for seat in self._taken)

        def rank(seat: Seat) -> tuple[int, int, int]:
            return -addresses[seat.address], -peers[seat.peer], seat.quiet_ns

        def has_more(seat: Seat) -> bool:
            if seat.address == new.address:
                return peers[seat.peer] > peers[new.peer] + 1
            return addresses[seat.address] > addresses[new.address] + 1

        seats = [seat for seat in self._taken if not seat.busy and has_more(seat)]
        if not seats:
            raise Overloaded(f"{self._most} {self._what} are open, the most allowed", RETRY_S)
        displaced = min(seats, key=rank)
        displaced.displaced = True
        displaced.task.cancel()
        self._taken.discard(displaced)
