"""Where requests are computed: small work on the event loop, the rest on a bounded pool."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from threading import Thread
from time import monotonic, perf_counter_ns
from typing import cast

from logitsieve.api.errors import DeadlineExceeded, DeviceLost, Unavailable
from logitsieve.api.results import TopKReply
from logitsieve.decoding.engine import Engine
from logitsieve.server.rpc.methods import PreparedRequest
from logitsieve.server.scheduling.batch_slices import Outcome, compute, joined
from logitsieve.server.scheduling.batcher import TOO_LATE, Batch, Batcher, Computed, Waiting

# A hop to a thread and back costs 50-80 us: shorter work is done where it arrives.
INLINE_US = 100.0

Finished = list[tuple[Waiting, Outcome]]
Errand = tuple[Callable[[], object], "Future[None]"]


def ignore(told: object) -> None:
    """What nobody wants to know."""


def no_gpu() -> int:
    """The nanoseconds that a thread has used of no GPU."""
    return 0


class Executor:
    """Runs computations for event loops: at most `max_in_flight` wait or run on the pool.

    `counted` is told the rows of each batch of the pool, and `lost` of a GPU that has failed, on
    the event loop. `device_ns` is how long GPUs have worked for the calling thread so far.
    """

    def __init__(
        self,
        *,
        threads: int,
        max_in_flight: int,
        max_queue_rows: int,
        batch_delay_us: int = 0,
        counted: Callable[[int], None] = ignore,
        lost: Callable[[DeviceLost], None] = ignore,
        device_ns: Callable[[], int] = no_gpu,
    ) -> None:
        self._threads, self._counted, self._lost = threads, counted, lost
        self._device_ns = device_ns
        self._batcher = Batcher(
            workers=threads,
            max_in_flight=max_in_flight,
            max_rows=max_queue_rows,
            delay_s=batch_delay_us * 1e-6,
        )
        self._errands: list[deque[Errand]] = [deque() for _ in range(threads)]
        self._pool = [
            Thread(
                target=self._answer_all, args=(errands,), name=f"logitsieve-{number}", daemon=True
            )
            for number, errands in enumerate(self._errands)
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
        point: Engine,
        asked: PreparedRequest,
        *,
        estimate_us: float,
        arrived_ns: int,
        time_left_s: float | None,
        on_gpu: bool = False,
    ) -> Computed:
        """What `asked.compute(point)` returns; it was in the queue from `arrived_ns` to its start.

        What waits for a GPU is never done on the loop, `on_gpu` says. DeadlineExceeded if no time
        is left at the start, Overloaded if too much is in flight or the queue takes too much of the
        time that is left. Cancelled while it waits, it is never computed.
        """
        small = estimate_us < INLINE_US and not on_gpu
        if small and self._batcher.in_flight <= self._threads:
            if time_left_s is not None and time_left_s <= 0:
                raise DeadlineExceeded(TOO_LATE)
            queue_ns = perf_counter_ns() - arrived_ns
            return Computed(asked.compute(point), queue_ns, 0)
        deadline = None if time_left_s is None else monotonic() + time_left_s
        future = asyncio.get_running_loop().create_future()
        waiting = Waiting(point, asked, estimate_us, arrived_ns, deadline, future, on_gpu)
        self._batcher.put(waiting)
        try:
            return cast("Computed", await future)
        except asyncio.CancelledError:
            self._batcher.discard(waiting)
            raise

    def on_each(self, errand: Callable[[], object]) -> None:
        """Run `errand` in every thread of the pool, one after the other, each between two batches.

        Raises what it raises there, and Unavailable if the pool is closed before.
        """
        for errands in self._errands:
            done: Future[None] = Future()
            errands.append((errand, done))
            if not self._batcher.wake():
                done.cancel()
            try:
                done.result()
            except CancelledError as error:
                raise Unavailable("the server is stopping") from error

    def close(self) -> None:
        """Wait for what is computing; what waits is cancelled."""
        rest = self._batcher.close()
        for thread in self._pool:
            thread.join()
        for waiting in rest + self._batcher.close():  # and what has had a turn meanwhile
            waiting.future.get_loop().call_soon_threadsafe(waiting.future.cancel)

    def _answer_all(self, errands: deque[Errand]) -> None:
        while (batch := self._batcher.take(errands)) is not None:
            if not (batch.pieces or batch.late):
                _do(*errands.popleft())
                continue
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
        for _, done in errands:
            done.cancel()

    def _finish(self, batch: Batch) -> Finished:
        """What is answered now; pieces of a request are kept until its last."""
        finished: Finished = [(waiting, DeadlineExceeded(TOO_LATE)) for waiting in batch.late]
        before = self._device_ns()
        outcomes = compute(batch.pieces) if batch.pieces else []
        device_ns = self._device_ns() - before
        for piece, outcome in zip(batch.pieces, outcomes, strict=True):
            waiting = piece.waiting
            waiting.device_ns += device_ns
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
            if isinstance(outcome, DeviceLost):
                self._lost(outcome)
            if waiting.future.done():
                continue
            if isinstance(outcome, Exception):
                waiting.future.set_exception(outcome)
            else:
                found = Computed(outcome, waiting.queue_ns, waiting.device_ns)
                waiting.future.set_result(found)


def _do(errand: Callable[[], object], done: Future[None]) -> None:
    try:
        errand()
    except Exception as error:  # raised where it is waited for
        done.set_exception(error)
    else:
        done.set_result(None)
