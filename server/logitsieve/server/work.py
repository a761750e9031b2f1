"""Where requests are computed: small work on the event loop, the rest on a bounded pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from time import monotonic, perf_counter_ns
from typing import cast

from logitsieve.decoding.point import Point
from logitsieve.server.batcher import TOO_LATE, Batch, Batcher, Waiting
from logitsieve.server.methods import Asked
from logitsieve.server.pieces import Outcome, compute, joined
from logitsieve.server.replies import Reply
from logitsieve.types.errors import DeadlineExceeded
from logitsieve.types.results import TopKReply

# A hop to a thread and back costs 50-80 us: shorter work is done where it arrives.
INLINE_US = 100.0

Finished = list[tuple[Waiting, Outcome]]


def ignore(rows: int) -> None:
    """A batch that nobody counts."""


class Work:
    """Runs computations for event loops: at most `max_in_flight` wait or run on the pool.

    `counted` is told the rows of each batch of the pool, on the event loop.
    """

    def __init__(
        self,
        *,
        threads: int,
        max_in_flight: int,
        max_queue_rows: int,
        batch_delay_us: int = 0,
        counted: Callable[[int], None] = ignore,
    ) -> None:
        self._threads, self._counted = threads, counted
        self._batcher = Batcher(
            workers=threads,
            max_in_flight=max_in_flight,
            max_rows=max_queue_rows,
            delay_s=batch_delay_us * 1e-6,
        )
        self._pool = [
            Thread(target=self._answer_all, name=f"logitsieve-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._pool:
            thread.start()

    @property
    def queue_rows(self) -> int:
        """Rows that wait."""
        return self._batcher.rows

    def admit(self, time_left_s: float | None) -> None:
        """Refuse a request before it is read where `run` would, unless it is small."""
        if self._batcher.in_flight > self._threads:
            self._batcher.admit(time_left_s)

    async def run(
        self,
        point: Point,
        asked: Asked,
        *,
        estimate_us: float,
        arrived_ns: int,
        time_left_s: float | None,
    ) -> tuple[Reply, int]:
        """(what `asked.compute(point)` returns, nanoseconds from `arrived_ns` to its start).

        DeadlineExceeded if no time is left at the start, Overloaded if too much is in flight or
        the queue takes too much of the time that is left. Cancelled while it waits, it is never
        computed.
        """
        if estimate_us < INLINE_US and self._batcher.in_flight <= self._threads:
            if time_left_s is not None and time_left_s <= 0:
                raise DeadlineExceeded(TOO_LATE)
            queue_ns = perf_counter_ns() - arrived_ns
            return asked.compute(point), queue_ns
        deadline = None if time_left_s is None else monotonic() + time_left_s
        future = asyncio.get_running_loop().create_future()
        waiting = Waiting(point, asked, estimate_us, arrived_ns, deadline, future)
        self._batcher.put(waiting)
        try:
            return cast("tuple[Reply, int]", await future)
        except asyncio.CancelledError:
            self._batcher.discard(waiting)
            raise

    def close(self) -> None:
        """Wait for what is computing; what waits is cancelled."""
        rest = self._batcher.close()
        for thread in self._pool:
            thread.join()
        for waiting in rest + self._batcher.close():  # and what has had a turn meanwhile
            waiting.future.get_loop().call_soon_threadsafe(waiting.future.cancel)

    def _answer_all(self) -> None:
        while (batch := self._batcher.take()) is not None:
            started = perf_counter_ns()
            finished = self._finish(batch)
            took_us = (perf_counter_ns() - started) / 1000
            self._batcher.done(batch, took_us, {waiting for waiting, _ in finished})
            loop = (batch.pieces[0].waiting if batch.pieces else batch.late[0]).future.get_loop()
            # Only the list is left to this thread: whatever else it held while the loop goes on
            # would keep an index mapped that is unloaded by then.
            handed = [(batch.rows, finished)]
            del batch, finished
            # One hop back to the loop for the whole batch.
            loop.call_soon_threadsafe(self._deliver, handed)

    def _finish(self, batch: Batch) -> Finished:
        """What is answered now; pieces of a request are kept until its last."""
        finished: Finished = [(waiting, DeadlineExceeded(TOO_LATE)) for waiting in batch.late]
        outcomes = compute(batch.pieces) if batch.pieces else []
        for piece, outcome in zip(batch.pieces, outcomes, strict=True):
            waiting = piece.waiting
            if piece.whole or isinstance(outcome, Exception):
                finished.append((waiting, outcome))
                continue
            waiting.parts.append(cast(TopKReply, outcome))
            if piece.last:
                finished.append((waiting, joined(waiting.parts)))
        return finished

    def _deliver(self, handed: list[tuple[int, Finished]]) -> None:
        rows, finished = handed.pop()
        if rows:
            self._counted(rows)
        for waiting, outcome in finished:
            if waiting.future.done():
                continue
            if isinstance(outcome, Exception):
                waiting.future.set_exception(outcome)
            else:
                waiting.future.set_result((outcome, waiting.queue_ns))
