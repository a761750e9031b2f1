"""Calls held back in the client while servers are crowded.

Refusing a call costs a server nearly as much as answering it. So a client limits its calls in
flight, like TCP's window: the limit grows with answers, and shrinks when a call is refused or waits
long. Jacobson (1988), Congestion avoidance; RFC 3168.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from threading import Lock
from time import monotonic

from logitsieve.api.errors import Overloaded

MARK = 0.25  # share of its time that a call may wait; servers refuse from a half
CUT = 0.9
CUT_S = 0.05  # between two cuts: waits come in crowds
LEAST = 8  # the lowest limit
RETRY_S = 0.1


class Throttle:
    """Counts the calls of a connection; thread-safe. There is no limit while none waits long."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._cut_at = -inf
        self.limit = inf
        self.in_flight = 0

    def enter(self) -> None:
        """Count a call until it `leave`s; Overloaded if it is held back."""
        with self._lock:
            if self.in_flight >= self.limit:
                reason = f"held back here, with {self.in_flight} in flight: servers are crowded"
                raise Overloaded(reason, RETRY_S)
            self.in_flight += 1

    def leave(self, crowded: bool) -> None:
        """Count the end of a call; `crowded`: it was refused, late, or waited long."""
        with self._lock:
            if not crowded:
                self.limit += 1 / self.limit
            elif (now := self._clock()) >= self._cut_at + CUT_S:
                self._cut_at = now
                self.limit = max(LEAST, CUT * min(self.limit, self.in_flight))
            self.in_flight -= 1
