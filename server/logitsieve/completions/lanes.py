"""Three threads: for texts of short requests, for texts of long ones, and for grammars.

So a short request never waits until a long text is tokenized.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import TypeVar

from logitsieve.api.errors import DeadlineExceeded, Overloaded, Unavailable
from logitsieve.completions.journal import GRAMMARS, LONG, SHORT, Journal, Ticket

T = TypeVar("T")

MOST_SHORT = 1 << 14  # bytes of a request; special tokens take quadratic time
MOST_WAITING = 64
RETRY_S = 1.0
GRACE_S = 2.0
STOPPING = "the server is stopping"


class Lanes:
    """Calls `stuck` if work goes on for `grace_s` after its request's time."""

    def __init__(
        self, journal: Journal, stuck: Callable[[], object], grace_s: float = GRACE_S
    ) -> None:
        self._journal, self._stuck, self._grace_s = journal, stuck, grace_s
        self._pools = {place: ThreadPoolExecutor(1) for place in (SHORT, LONG, GRAMMARS)}
        self._closed = False
        self._waiting = dict.fromkeys(self._pools, 0)

    async def run(self, ticket: Ticket, work: Callable[[], T], *, grammar: bool = False) -> T:
        """Return `work()`.

        DeadlineExceeded after the request's time, Overloaded if many wait, Unavailable once closed.
        """
        if self._closed:
            raise Unavailable(STOPPING)
        place = GRAMMARS if grammar else SHORT if ticket.size <= MOST_SHORT else LONG
        if self._waiting[place] >= MOST_WAITING:
            raise Overloaded(f"{MOST_WAITING} texts wait to be read", RETRY_S)

        def read() -> T:
            with self._journal.doing(place, [ticket.number]):
                return work()

        self._waiting[place] += 1
        made = self._pools[place].submit(read)
        waited = asyncio.wrap_future(made)
        try:
            done, _ = await asyncio.wait((waited,), timeout=ticket.until - monotonic())
            if not done:
                asyncio.get_running_loop().call_later(self._grace_s, self._check, made)
                raise DeadlineExceeded("no tokens within the server's time for a request")
            if made.cancelled():
                raise Unavailable(STOPPING)
            return await waited
        finally:
            waited.cancel()
            self._waiting[place] -= 1

    def close(self) -> None:
        self._closed = True
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _check(self, made: Future[T]) -> None:
        if made.running():
            self._stuck()
