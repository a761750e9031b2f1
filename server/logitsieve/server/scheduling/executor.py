"""Runs requests: small ones on the event loop, the rest in batches on a pool of threads.

Heads and normalizers promise that an answer does not depend on the other requests of its batch,
except for its times and `max_error`, which is the batch's largest.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from time import monotonic, perf_counter_ns
from typing import Any, cast

import numpy as np

from logitsieve.api.errors import DeadlineExceeded, DeviceLost, InvalidRequest
from logitsieve.api.requests import TopKRequest
from logitsieve.api.results import ANSWER_COLUMNS, Answer, TopKReply
from logitsieve.server.config import ServeConfig
from logitsieve.server.loops import call_soon
from logitsieve.server.scheduling.batcher import TOO_LATE, Batch, Batcher
from logitsieve.server.scheduling.request import (
    ALL,
    Computed,
    NamedEngine,
    Pace,
    PreparedRequest,
    QueuedRequest,
)
from logitsieve.utils.deadline import Timings, ending_by, recording
from logitsieve.utils.hidden import as_hidden
from logitsieve.v1.rpcs import Reply

CLOSE_S = 1.0

log = logging.getLogger(__name__)

Outcome = Reply | Exception
Finished = list[tuple[QueuedRequest, Outcome]]
Handed = list[tuple[int, Finished]]  # rows and outcomes of one batch, until the loop takes them


class Executor:
    """Answers requests for event loops.

    `count_batch` (a batch's rows) and `lose_device` (a GPU's failure) are called on the loop;
    `device_ns` returns the calling thread's time on GPUs so far.
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
        self._device_ns = device_ns or int  # 0 without a GPU
        self.batcher = Batcher(
            workers=config.threads,
            max_in_flight=config.max_in_flight,
            max_rows=config.max_queue_rows,
            delay_s=config.batch_delay_us * 1e-6,
        )
        names = [f"logitsieve-{number}" for number in range(config.threads)]
        self._pool = [Thread(target=self._work, name=name, daemon=True) for name in names]
        for thread in self._pool:
            thread.start()

    def admit(self, time_left_s: float | None, waited_s: float = 0.0) -> None:
        self.batcher.admit(time_left_s, waited_s, self.batcher.in_flight > self._threads)

    async def run(
        self,
        engine: NamedEngine,
        request: PreparedRequest,
        *,
        estimate_us: float,
        pace: Pace,
        arrived_ns: int,
        time_left_s: float | None,
        offloaded: bool = False,
        extra_us: float = 0.0,
        timings: Timings | None = None,
    ) -> Computed:
        """Return the reply of `engine`, the wait since `arrived_ns` and the time on a GPU, in ns.

        `offloaded` work, of a GPU or other processes, never runs on the event loop. A cancelled or
        late request ends with its batch. `timings` receives the calls to shards. Raises like
        `Batcher.put`.
        """
        estimate_us += extra_us
        small = not offloaded and pace.fits_loop(estimate_us)
        queue_ns = (began := perf_counter_ns()) - arrived_ns
        if small and self.batcher.in_flight <= self._threads:
            if time_left_s is not None and time_left_s <= 0:
                raise DeadlineExceeded(TOO_LATE)
            reply = request.answer(engine, ALL)
            pace.add_on_loop((perf_counter_ns() - began) / 1000, estimate_us)
            return reply, queue_ns, 0
        until = None if time_left_s is None else monotonic() + time_left_s
        future = asyncio.get_running_loop().create_future()
        queued = QueuedRequest(
            engine, request, estimate_us, pace.pool, arrived_ns, until, future, offloaded, extra_us
        )
        if timings is not None:
            queued.timings = timings
        self.batcher.put(queued, queue_ns * 1e-9)
        try:
            return cast("Computed", await future)
        except asyncio.CancelledError:
            self.batcher.discard(queued)
            raise

    def close(self, within_s: float = CLOSE_S) -> None:
        """End the pool. Cancel requests that wait, or are not computed within `within_s`."""
        _cancel(self.batcher.close())
        end = monotonic() + within_s
        for thread in self._pool:
            thread.join(max(0.0, end - monotonic()))
        _cancel(self.batcher.clear())

    def _work(self) -> None:
        handed: Handed = []
        while True:
            try:
                if (batch := self.batcher.take()) is None:
                    return
                loop = (batch.requests or batch.late)[0].future.get_loop()
                self._compute(batch, handed)
                del batch
                call_soon(loop, self._deliver, handed)
                handed = []
            except Exception as error:  # a defect: no client must wait for a lost request
                log.exception("the queue is lost")
                self._give_up(error, handed)
                handed = []

    def _give_up(self, error: Exception, handed: Handed) -> None:
        handed.append((0, [(queued, error) for queued in self.batcher.clear()]))
        for outcome in [one for _, finished in handed for one in finished]:
            call_soon(outcome[0].future.get_loop(), self._deliver, [(0, [outcome])])

    def _compute(self, batch: Batch, handed: Handed) -> None:
        started = perf_counter_ns()
        try:
            finished = self._finish(batch)
        except Exception as error:
            finished = [(queued, error) for queued in batch.late + batch.requests]
        failed = any(isinstance(outcome, Exception) for _, outcome in finished)
        took_us = None if failed else (perf_counter_ns() - started) / 1000
        handed.append((batch.rows, finished))
        self.batcher.done(batch, took_us, {queued for queued, _ in finished})

    def _finish(self, batch: Batch) -> Finished:
        finished: Finished = [(queued, DeadlineExceeded(TOO_LATE)) for queued in batch.late]
        before = self._device_ns()
        outcomes, timings = list[Outcome](), Timings()
        if batch.requests:
            deadlines = [queued.deadline for queued in batch.requests]
            # The latest deadline holds, so that no request fails by another's shorter one.
            latest = [deadline for deadline in deadlines if deadline is not None]
            end = max(latest) if len(latest) == len(deadlines) else None
            with ending_by(end), recording(timings):
                outcomes = compute(batch.requests)
        device_ns = self._device_ns() - before
        for queued, outcome in zip(batch.requests, outcomes, strict=True):
            queued.device_ns += device_ns
            queued.timings += timings
            if queued.whole or isinstance(outcome, Exception):
                finished.append((queued, outcome))
                continue
            queued.parts.append(outcome)
            if queued.stop == queued.request.rows:
                finished.append((queued, joined(queued.parts)))
        return finished

    def _deliver(self, handed: Handed) -> None:
        rows, finished = handed.pop()
        for queued, outcome in finished:
            if queued.future.done():
                continue
            if isinstance(outcome, Exception):
                queued.future.set_exception(outcome)
            else:
                queued.future.set_result((outcome, queued.queue_ns, queued.device_ns))
        for _, outcome in finished:
            if isinstance(outcome, DeviceLost) and self._lose_device:
                self._lose_device(outcome)
        if rows and self._count_batch:
            self._count_batch(rows)


def compute(requests: Sequence[QueuedRequest]) -> list[Outcome]:
    if len(requests) > 1:
        # If they fail, each is computed alone, and gets its own error.
        with suppress(Exception):
            return list(_together(requests))
    return [_alone(queued) for queued in requests]


def joined(parts: Sequence[Reply]) -> Reply:
    answers = [part.answer for part in parts]
    answer = _by_row(answers[0], lambda name: np.concatenate([getattr(a, name) for a in answers]))
    answer = answer._replace(
        max_error=max(one.max_error for one in answers),
        compute_ns=sum(one.compute_ns for one in answers),
        rows_missing=tuple(sorted({each for one in answers for each in one.rows_missing})),
    )
    lists = zip(*(cast("tuple[np.ndarray | None, ...]", part[:-1]) for part in parts), strict=True)
    arrays = (None if each[0] is None else np.concatenate(each) for each in lists)
    kind: Any = type(parts[0])
    return cast("Reply", kind(*arrays, answer))


def cut(reply: TopKReply, start: int, stop: int) -> TopKReply:
    answer = _by_row(reply.answer, lambda name: getattr(reply.answer, name)[start:stop])
    return TopKReply(reply.ids[start:stop], reply.logits[start:stop], answer)


def _cancel(requests: Sequence[QueuedRequest]) -> None:
    for queued in requests:
        call_soon(queued.future.get_loop(), queued.future.cancel)


def _alone(queued: QueuedRequest) -> Outcome:
    request, engine = queued.request, queued.engine
    try:
        try:
            return request.answer(engine, queued.part)
        except InvalidRequest:
            if not queued.whole:
                request.answer(engine, ALL)  # so that the error names a row of the request
            raise
    except Exception as error:
        return error


def _together(requests: Sequence[QueuedRequest]) -> list[TopKReply]:
    rows = [
        as_hidden(cast("np.ndarray", queued.request.independent)[queued.start : queued.stop])
        for queued in requests
    ]
    first = requests[0]
    hidden_states = rows[0] if len(rows) == 1 else np.concatenate(rows)
    reply = first.engine.answer(TopKRequest(hidden_states, first.request.k))
    ends = np.cumsum([len(one) for one in rows]).tolist()
    return [cut(reply, end - len(one), end) for one, end in zip(rows, ends, strict=True)]


def _by_row(answer: Answer, value_of: Callable[[str], np.ndarray]) -> Answer:
    values: dict[str, Any] = {
        name: value_of(name) for name in ANSWER_COLUMNS if getattr(answer, name) is not None
    }
    return answer._replace(**values)
