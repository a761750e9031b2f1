"""Runs requests: small ones on the event loop, the rest in batches on a pool of threads.

Heads and normalizers promise that no answer depends on the other requests of its batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from threading import Thread
from time import monotonic, perf_counter_ns
from typing import Any, cast

import numpy as np

from logitsieve.api.errors import DeadlineExceeded, DeviceLost
from logitsieve.api.results import ANSWER_COLUMNS, Answer, TopKReply
from logitsieve.server.config import ServeConfig
from logitsieve.server.scheduling.batcher import TOO_LATE, Batch, Batcher
from logitsieve.server.scheduling.request import (
    Computed,
    Point,
    PreparedRequest,
    QueuedRequest,
    RunningMean,
)
from logitsieve.utils.deadline import ending_by
from logitsieve.utils.hidden import as_hidden
from logitsieve.v1.rpcs import Reply

# A hop to a thread and back costs 50-80 us: shorter work stays on the loop.
INLINE_US = 100.0

Outcome = Reply | Exception
Finished = list[tuple[QueuedRequest, Outcome]]


class Executor:
    """Runs computations for event loops: at most `max_in_flight` wait or run on the pool.

    `count_batch` gets the rows of each batch, `lose_device` the failure of a GPU, both on the event
    loop. `device_ns` returns the calling thread's time on GPUs so far.
    """

    def __init__(
        self,
        config: ServeConfig,
        *,
        count_batch: Callable[[int], object] | None = None,
        lose_device: Callable[[DeviceLost], object] | None = None,
        device_ns: Callable[[], int] | None = None,
    ) -> None:
        self._threads = config.threads
        self._count_batch, self._lose_device = count_batch, lose_device
        self._device_ns = device_ns
        self.batcher = Batcher(
            workers=config.threads,
            max_in_flight=config.max_in_flight,
            max_rows=config.max_queue_rows,
            delay_s=config.batch_delay_us * 1e-6,
        )
        self._pool = [
            Thread(target=self._work, name=f"logitsieve-{number}", daemon=True)
            for number in range(config.threads)
        ]
        for thread in self._pool:
            thread.start()

    def admit(self, time_left_s: float | None) -> None:
        if self.batcher.in_flight > self._threads:
            self.batcher.admit(time_left_s)

    async def run(
        self,
        point: Point,
        request: PreparedRequest,
        *,
        estimate_us: float,
        pace: RunningMean,
        arrived_ns: int,
        time_left_s: float | None,
        offloaded: bool = False,
    ) -> Computed:
        """Return `request.compute(point)`, the wait since `arrived_ns` and the time on a GPU, in
        ns.

        Work of a GPU or of other processes (`offloaded`) never runs on the event loop.
        DeadlineExceeded if no time is left, Overloaded like `Batcher.put`. A request cancelled
        while it waits is never computed.
        """
        small = estimate_us < INLINE_US and not offloaded
        if small and self.batcher.in_flight <= self._threads:
            if time_left_s is not None and time_left_s <= 0:
                raise DeadlineExceeded(TOO_LATE)
            queue_ns = perf_counter_ns() - arrived_ns
            return request.compute(point), queue_ns, 0
        deadline = None if time_left_s is None else monotonic() + time_left_s
        future = asyncio.get_running_loop().create_future()
        queued = QueuedRequest(
            point, request, estimate_us, pace, arrived_ns, deadline, future, offloaded
        )
        self.batcher.put(queued)
        try:
            return cast("Computed", await future)
        except asyncio.CancelledError:
            self.batcher.discard(queued)
            raise

    def close(self) -> None:
        rest = self.batcher.close()
        for thread in self._pool:
            thread.join()
        for queued in rest + self.batcher.close():  # and those put back meanwhile
            queued.future.get_loop().call_soon_threadsafe(queued.future.cancel)

    def _work(self) -> None:
        while (batch := self.batcher.take()) is not None:
            started = perf_counter_ns()
            finished = self._finish(batch)
            took_us = (perf_counter_ns() - started) / 1000
            loop = (batch.requests or batch.late)[0].future.get_loop()
            handed = [(batch.rows, finished)]
            self.batcher.done(batch, took_us, {queued for queued, _ in finished})
            # A reference held here while the loop goes on would keep an unloaded index mapped.
            del batch, finished
            loop.call_soon_threadsafe(self._deliver, handed)

    def _finish(self, batch: Batch) -> Finished:
        finished: Finished = [(queued, DeadlineExceeded(TOO_LATE)) for queued in batch.late]
        before = self._device_ns() if self._device_ns else 0
        outcomes: list[Outcome] = []
        if batch.requests:
            deadlines = [queued.deadline for queued in batch.requests]
            # Each is judged by its own; no request fails by the shorter one of another.
            latest = [deadline for deadline in deadlines if deadline is not None]
            with ending_by(max(latest) if len(latest) == len(deadlines) else None):
                outcomes = compute(batch.requests)
        device_ns = self._device_ns() - before if self._device_ns else 0
        for queued, outcome in zip(batch.requests, outcomes, strict=True):
            queued.device_ns += device_ns
            if queued.whole or isinstance(outcome, Exception):
                finished.append((queued, outcome))
                continue
            queued.parts.append(cast(TopKReply, outcome))
            if queued.stop == queued.request.rows:
                finished.append((queued, joined(queued.parts)))
        return finished

    def _deliver(self, handed: list[tuple[int, Finished]]) -> None:
        rows, finished = handed.pop()
        if rows and self._count_batch:
            self._count_batch(rows)
        for queued, outcome in finished:
            if isinstance(outcome, DeviceLost) and self._lose_device:
                self._lose_device(outcome)
            if queued.future.done():
                continue
            if isinstance(outcome, Exception):
                queued.future.set_exception(outcome)
            else:
                queued.future.set_result((outcome, queued.queue_ns, queued.device_ns))


def compute(requests: Sequence[QueuedRequest]) -> list[Outcome]:
    if len(requests) == 1 and requests[0].whole:
        return [_alone(requests[0])]
    try:
        return list(_together(requests))
    except Exception:  # each request gets the message of its own mistake
        outcomes = [(queued, _alone(queued)) for queued in requests]
        return [
            cut(outcome, queued.start, queued.stop) if isinstance(outcome, TopKReply) else outcome
            for queued, outcome in outcomes
        ]


def joined(parts: Sequence[TopKReply]) -> TopKReply:
    answers = [part.answer for part in parts]
    answer = _by_row(answers[0], lambda name: np.concatenate([getattr(a, name) for a in answers]))
    return TopKReply(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.logits for part in parts]),
        answer._replace(
            compute_ns=sum(one.compute_ns for one in answers),
            rows_missing=tuple(sorted({each for one in answers for each in one.rows_missing})),
        ),
    )


def cut(reply: TopKReply, start: int, stop: int) -> TopKReply:
    answer = _by_row(reply.answer, lambda name: getattr(reply.answer, name)[start:stop])
    return TopKReply(reply.ids[start:stop], reply.logits[start:stop], answer)


def _alone(queued: QueuedRequest) -> Outcome:
    try:
        return queued.request.compute(queued.point)
    except Exception as error:
        return error


def _together(requests: Sequence[QueuedRequest]) -> list[TopKReply]:
    rows = [
        as_hidden(cast("np.ndarray", queued.request.independent)[queued.start : queued.stop])
        for queued in requests
    ]
    first = requests[0]
    reply = first.point.topk(rows[0] if len(rows) == 1 else np.concatenate(rows), first.request.k)
    ends = np.cumsum([len(one) for one in rows]).tolist()
    return [cut(reply, end - len(one), end) for one, end in zip(rows, ends, strict=True)]


def _by_row(answer: Answer, value_of: Callable[[str], np.ndarray]) -> Answer:
    values: dict[str, Any] = {
        name: value_of(name) for name in ANSWER_COLUMNS if getattr(answer, name) is not None
    }
    return answer._replace(**values)
