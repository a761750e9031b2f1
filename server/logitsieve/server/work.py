"""Where requests are computed: small work on the event loop, the rest on a bounded pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from time import monotonic, perf_counter_ns
from typing import Any, TypeVar

from logitsieve.types.errors import DeadlineExceeded, Overloaded

T = TypeVar("T")

# A hop to a thread and back costs 50-80 us: shorter work is done where it arrives.
INLINE_US = 100.0

# Long enough for a queue of ordinary batches to move, short against the client's 5 s timeout.
RETRY_AFTER_S = 0.05


class Work:
    """Runs computations for one event loop; at most `max_in_flight` wait or run on the pool."""

    def __init__(self, *, threads: int, max_in_flight: int) -> None:
        self._threads = threads
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(threads, "logitsieve")

    async def run(
        self,
        compute: Callable[..., T],
        *arguments: Any,
        estimate_us: float,
        arrived_ns: int,
        time_left_s: float | None,
    ) -> tuple[T, int]:
        """(`compute(*arguments)`, nanoseconds from `arrived_ns` to its start).

        DeadlineExceeded if no time is left at the start, Overloaded if too much is in flight.
        Cancelled while it waits, it is never computed.
        """
        if estimate_us < INLINE_US and self._in_flight <= self._threads:
            if time_left_s is not None and time_left_s <= 0:
                raise DeadlineExceeded("the deadline passed before computing")
            queue_ns = perf_counter_ns() - arrived_ns
            return compute(*arguments), queue_ns
        deadline = None if time_left_s is None else monotonic() + time_left_s

        def job() -> tuple[T, int]:
            if deadline is not None and monotonic() >= deadline:
                raise DeadlineExceeded("the deadline passed before computing")
            queue_ns = perf_counter_ns() - arrived_ns
            return compute(*arguments), queue_ns

        return await asyncio.wrap_future(self._submit(job))

    def close(self) -> None:
        """Wait for what is computing; what waits is cancelled."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, job: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._in_flight >= self._max_in_flight:
                raise Overloaded(
                    f"{self._in_flight} requests are in flight, the most allowed", RETRY_AFTER_S
                )
            self._in_flight += 1
        future = self._pool.submit(job)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: Future[T]) -> None:
        with self._lock:
            self._in_flight -= 1
