"""The queue before the pool of threads, counted in rows.

A worker takes the oldest request, with others of the same key that fit into the batch. After each
batch, the rest of a longer request returns to the end of the queue, so that small ones wait for one
batch.
"""

from collections import deque
from collections.abc import Callable, Collection
from threading import Condition
from time import monotonic, perf_counter_ns
from typing import NamedTuple

from logitsieve.api.errors import DeadlineExceeded, Overloaded, Unavailable
from logitsieve.server.scheduling.request import WORST, QueuedRequest

LEAST_RETRY_S = 0.05

TOO_LATE = "the deadline passed before computing"

PATIENCE = 0.5  # share of its time that a request may wait; the rest is for computing
DOUBT = 4.0  # a request is refused if its estimate exceeds the time left by this factor


class Batch(NamedTuple):
    requests: list[QueuedRequest]
    late: list[QueuedRequest]

    @property
    def rows(self) -> int:
        return sum(queued.stop - queued.start for queued in self.requests)

    @property
    def estimate_us(self) -> float:
        return sum((queued.stop - queued.start) * queued.us_per_row for queued in self.requests)


class Batcher:
    """A bounded queue from which workers take batches. Thread-safe.

    Requests may wait while they have at most `max_rows` rows together; one may always wait. A small
    request waits up to `delay_s` for others to join it, unless a worker is idle.
    """

    def __init__(
        self,
        *,
        workers: int,
        max_in_flight: int,
        max_rows: int,
        delay_s: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        self._workers, self._max_in_flight = workers, max_in_flight
        self._max_rows, self._delay_s = max_rows, delay_s
        self._changed = Condition()
        self._queue: deque[QueuedRequest] = deque()
        self._closed = False
        self._in_flight: set[QueuedRequest] = set()
        self.rows = 0
        self._us = 0.0  # estimated work that is left in flight

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def wait_s(self) -> float:
        return self._us / self._workers * 1e-6

    def admit(self, time_left_s: float | None, waited_s: float = 0.0, queues: bool = True) -> None:
        """Refuse a request before it is read.

        DeadlineExceeded if its time is up. Overloaded if too many are in flight, or if it would
        wait for more than PATIENCE of its time, including `waited_s`. `queues` is False if a thread
        is free for it.
        """
        if time_left_s is not None:
            if time_left_s <= 0:
                raise DeadlineExceeded(TOO_LATE)
            wait_s = waited_s + self.wait_s * queues
            if wait_s > PATIENCE * (waited_s + time_left_s):
                raise self._overloaded(f"the queue takes too much of the {time_left_s:.3g} s left")
        if (most := len(self._in_flight)) >= self._max_in_flight:
            raise self._overloaded(f"{most} requests are in flight, the most allowed")

    def put(self, queued: QueuedRequest, waited_s: float = 0.0) -> None:
        """Append a request. Raises like `admit`.

        Also Overloaded if too many rows wait, DeadlineExceeded if computing takes far too long.
        """
        with self._changed:
            if self._closed:
                raise Unavailable("the server is stopping")
            left_s = None if queued.deadline is None else queued.deadline - self._clock()
            self.admit(left_s, waited_s)
            us = queued.left * queued.paced_us
            if left_s is not None and us * 1e-6 > DOUBT * left_s:
                message = f"computing takes about {us * 1e-6:.3g} s, {left_s:.3g} s are left"
                raise DeadlineExceeded(message)
            if self._queue and self.rows + queued.left > self._max_rows:
                reason = f"{self.rows} rows wait, {self._max_rows} are the most allowed"
                raise self._overloaded(reason)
            alone = len(self._in_flight) < self._workers
            queued.ready_at = 0.0 if alone else self._clock() + self._delay_s
            self._append(queued)
            self._in_flight.add(queued)
            self._us += us

    def discard(self, queued: QueuedRequest) -> None:
        with self._changed:
            if queued in self._queue:
                self._drop(queued)

    def take(self) -> Batch | None:
        """Wait for a batch, which must be passed to `done`. None once the queue is closed."""
        with self._changed:
            while not self._closed:
                if not self._queue:
                    self._changed.wait()
                elif (pause_s := self._pause_s(self._queue[0])) > 0:
                    self._changed.wait(pause_s)
                else:
                    return self._next()
            return None

    def done(
        self, batch: Batch, took_us: float | None, answered: Collection[QueuedRequest]
    ) -> None:
        with self._changed:
            if took_us is not None:
                pace = batch.requests[0].pace
                most = WORST * max(pace.value, 1.0)
                pace.add(min(took_us / max(batch.estimate_us, 1e-3), most))
            for queued in batch.late:
                self._leave(queued)
            for queued in batch.requests:
                if queued not in self._in_flight:
                    continue
                self._us -= (queued.stop - queued.start) * queued.paced_us
                queued.start = queued.stop
                if queued in answered or queued.future.done():
                    self._leave(queued)
                else:
                    self._append(queued)

    def clear(self) -> list[QueuedRequest]:
        with self._changed:
            rest = list(self._in_flight)
            self._in_flight.clear()
            self._queue.clear()
            self.rows, self._us = 0, 0.0
            return rest

    def close(self) -> list[QueuedRequest]:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            rest = list(self._queue)
            for queued in rest:
                self._drop(queued)
            return rest

    def _overloaded(self, reason: str) -> Overloaded:
        return Overloaded(reason, max(LEAST_RETRY_S, self.wait_s))

    def _append(self, queued: QueuedRequest) -> None:
        left = queued.left
        self._changed.notify()
        self._queue.append(queued)
        self.rows += left

    def _drop(self, queued: QueuedRequest) -> None:
        left = queued.left
        self._leave(queued)
        self._queue.remove(queued)
        self.rows -= left

    def _leave(self, queued: QueuedRequest) -> None:
        if queued in self._in_flight:
            self._us -= queued.left * queued.paced_us
            self._in_flight.remove(queued)

    def _pause_s(self, first: QueuedRequest) -> float:
        if first.key is None or first.left >= first.batch_rows:
            return 0.0
        return first.ready_at - self._clock()

    def _next(self) -> Batch:
        late: list[QueuedRequest] = []
        while self._queue and not self._in_time(self._queue[0]):
            late.append(self._queue.popleft())
            self.rows -= late[-1].left
        if not self._queue:
            return Batch([], late)
        first = self._queue.popleft()
        left_rows = first.batch_rows
        requests = [self._take_rows(first, left_rows)]
        if first.key is not None:
            left_rows -= first.left
            for other in list(self._queue):
                if other.key == first.key and other.left <= left_rows and self._in_time(other):
                    self._queue.remove(other)
                    requests.append(self._take_rows(other, left_rows))
                    left_rows -= other.left
        return Batch(requests, late)

    def _in_time(self, queued: QueuedRequest) -> bool:
        if queued.future.done():
            return False
        return queued.deadline is None or self._clock() < queued.deadline

    def _take_rows(self, queued: QueuedRequest, most: int) -> QueuedRequest:
        self.rows -= queued.left
        if not queued.start:
            queued.queue_ns = perf_counter_ns() - queued.arrived_ns
        queued.stop = min(queued.request.rows, queued.start + most)
        return queued
