import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from time import perf_counter_ns, sleep
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from logitsieve.api.errors import DeadlineExceeded, DeviceLost, Overloaded, Unavailable
from logitsieve.api.requests import TopKRequest
from logitsieve.api.results import Answer, RowRange, TopKReply
from logitsieve.server import ServeConfig
from logitsieve.server.scheduling.executor import Executor, joined
from logitsieve.server.scheduling.request import (
    BATCH_ROWS,
    INLINE_US,
    PART_US,
    WORST,
    Pace,
    PreparedRequest,
)
from logitsieve.utils.deadline import time_left
from tests.server.running import WAIT_S

ROW = np.zeros((1, 4), np.float32)
SMALL, LARGE = INLINE_US / 2, INLINE_US * 2


def executor(
    lose_device: Any = None, device_ns: Any = None, count_batch: Any = None, **options: int
) -> Executor:
    usual = {"batch_delay_us": 0, "threads": 1, "max_in_flight": 9, "max_queue_rows": 100}
    config = ServeConfig(**usual | options)  # type: ignore[arg-type]
    return Executor(config, lose_device=lose_device, device_ns=device_ns, count_batch=count_batch)


@pytest.fixture
def work() -> Iterator[Executor]:
    work = executor(max_in_flight=2)
    yield work
    work.close()


async def run(
    work: Executor, compute: Callable[[], Any], us: float, left_s: Any = None, **options: Any
) -> tuple[Any, int, int]:
    request = PreparedRequest(1, 1, 0, 0, "", lambda: TopKRequest(ROW, 1))
    engine: Any = SimpleNamespace(answer=lambda request: compute())
    about = {"pace": Pace(), "arrived_ns": perf_counter_ns(), "time_left_s": left_s} | options
    return await work.run(engine, request, estimate_us=us, **about)


class Held:
    """Work that is held until it is let go."""

    def __init__(self) -> None:
        self._begun, self._going = threading.Event(), threading.Event()
        self.go = self._going.set

    def __call__(self, *_: object) -> str:
        self._begun.set()
        assert self._going.wait(WAIT_S)
        return "held"

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, WAIT_S)

    async def run(self, work: Executor, estimate_us: float = LARGE, **options: Any) -> Any:
        """The task of a request that is being computed."""
        task = asyncio.create_task(run(work, self, estimate_us, **options))
        await self.begun()
        return task


def fail() -> None:
    raise KeyError("k")


async def test_small_work_stays_on_the_loop_and_large_or_a_gpus_leaves_it(work: Executor) -> None:
    here = threading.get_ident()
    paces = [Pace() for _ in range(9)]
    for pace in paces:
        assert (await run(work, threading.get_ident, SMALL, pace=pace))[::2] == (here, 0)
    assert min(pace.loop.value for pace in paces) < WORST
    assert (await run(work, threading.get_ident, LARGE))[0] != here
    assert (await run(work, threading.get_ident, SMALL, offloaded=True))[0] != here


@pytest.mark.parametrize("estimate_us", [SMALL, LARGE])
async def test_deadlines_and_errors(work: Executor, estimate_us: float) -> None:
    with pytest.raises(DeadlineExceeded):  # before it is computed
        await run(work, pytest.fail, estimate_us, 0.0)
    with pytest.raises(KeyError):
        await run(work, fail, estimate_us)
    left = (await run(work, time_left, LARGE, 30.0))[0]  # what computes knows it
    assert 0 < left <= 30.0
    assert (await run(work, time_left, LARGE))[0] is None


def reply_of(rows: int, missing: tuple[RowRange, ...] = ()) -> TopKReply:
    nothing, none = np.zeros(rows, np.bool_), np.zeros(rows, np.int32)
    answer = Answer("m", "1", "", "full", nothing, none, nothing, rows_missing=missing)
    return TopKReply(np.zeros((rows, 5), np.int32), np.zeros((rows, 5), np.float32), answer)


def joinable(work: Executor, point: Any, hidden_states: np.ndarray = ROW, **options: Any) -> Any:
    """A request that others may share a batch with."""
    asked = TopKRequest(hidden_states, 5)
    request = PreparedRequest(len(hidden_states), 5, 0, 0, "best", lambda: asked, hidden_states)
    about: Any = {"pace": Pace(), "arrived_ns": perf_counter_ns(), "time_left_s": None}
    return work.run(point, request, **about | options)


async def test_a_batch_has_the_time_of_its_most_patient_request() -> None:
    left: list[float | None] = []
    work, held = executor(), Held()

    class Point:
        def answer(self, request: TopKRequest) -> TopKReply:
            left.append(time_left())
            return reply_of(len(request.hidden_states))

    first, point = await held.run(work), Point()
    both = [
        asyncio.create_task(joinable(work, point, estimate_us=LARGE, time_left_s=seconds))
        for seconds in (WAIT_S, 100.0 * WAIT_S)
    ]
    await asyncio.sleep(0)
    held.go()
    await asyncio.gather(first, *both)
    work.close()
    (given,) = left
    assert given is not None
    assert given > 10 * WAIT_S


async def test_every_request_of_a_batch_gets_its_own_rows() -> None:
    batches, random = list[int](), np.random.default_rng(0)
    work = executor(count_batch=batches.append, max_in_flight=40, max_queue_rows=400)

    class Echo:
        def answer(self, request: TopKRequest) -> TopKReply:
            hidden_states = request.hidden_states
            reply, marks = reply_of(len(hidden_states)), hidden_states[:, 0].astype(np.int32)
            answer = reply.answer._replace(scanned=marks, log_z=hidden_states[:, 0])
            return TopKReply(
                reply.ids + marks[:, None], reply.logits + hidden_states[:, :1], answer
            )

    held, point = Held(), Echo()
    first = await held.run(work)
    ends = np.cumsum(random.integers(1, 9, 30)).tolist()
    marks = [np.arange(start, end, dtype=np.float32) for start, end in pairwise([0, *ends])]
    marks = [marks[place] for place in random.permutation(30)]
    asked = [
        asyncio.create_task(
            joinable(work, point, hidden_states=np.tile(own, (4, 1)).T, estimate_us=LARGE)
        )
        for own in marks
    ]
    await asyncio.sleep(0)
    held.go()
    await first
    for (reply, _, _), own in zip(await asyncio.gather(*asked), marks, strict=True):
        answer = reply.answer
        for found in (reply.ids[:, 0], reply.logits[:, 4], answer.scanned, answer.log_z):
            np.testing.assert_array_equal(found, own)
    work.close()
    assert max(batches) > 20


def test_joined_parts_say_every_row_that_was_missing() -> None:
    ranges = RowRange(0, 256), RowRange(512, 256)
    parts = [reply_of(2), reply_of(1, ranges[1:]), reply_of(1, ranges)]
    assert joined(parts).answer.rows_missing == ranges


async def test_no_more_than_max_in_flight_and_the_cancelled_not_computed(work: Executor) -> None:
    held = Held()
    first = await held.run(work)
    waiting = asyncio.create_task(run(work, pytest.fail, LARGE))
    await asyncio.sleep(0)  # it enters the queue
    assert work.batcher.rows == 1
    with pytest.raises(Overloaded) as caught:
        await run(work, pytest.fail, LARGE)
    assert caught.value.retry_after_s > 0
    with pytest.raises(Overloaded):
        work.admit(None)
    with pytest.raises(Overloaded):  # small work does not pass those who wait
        await run(work, pytest.fail, SMALL)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.batcher.rows == 0  # its place is free at once
    held.go()
    assert (await first)[0] == "held"
    assert (await run(work, lambda: "next", LARGE))[0] == "next"
    work.admit(None)


async def test_closing_finishes_what_is_computing_and_cancels_what_waits() -> None:
    work, held = executor(), Held()
    first = await held.run(work)
    waiting = asyncio.create_task(run(work, pytest.fail, LARGE))
    await asyncio.sleep(0)
    closing = asyncio.create_task(asyncio.to_thread(work.close))
    while work.batcher.rows:
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await run(work, pytest.fail, LARGE)
    held.go()
    assert (await first)[0] == "held"
    await closing
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_the_time_of_a_gpu_and_its_loss_are_told() -> None:
    worked, told, error = threading.local(), list[DeviceLost](), DeviceLost("cuda:0", "CUDA error")

    def compute() -> str:
        worked.ns = getattr(worked, "ns", 0) + 40
        return "found"

    def lose() -> None:
        raise error

    work = executor(
        batch_delay_us=200, device_ns=lambda: getattr(worked, "ns", 0), lose_device=told.append
    )
    for _ in range(2):
        reply, _, device_ns = await run(work, compute, SMALL, offloaded=True)
        assert (reply, device_ns) == ("found", 40)
    with pytest.raises(DeviceLost):
        await run(work, lose, LARGE)
    assert told == [error]
    assert work.batcher._delay_s == pytest.approx(2e-4)
    work.close()


def test_a_pace_is_not_learnt_from_failures(work: Executor) -> None:
    pace = Pace()
    for compute in (lambda: sleep(1e-3), fail):
        before = pace.pool.value
        with contextlib.suppress(KeyError):
            asyncio.run(run(work, compute, LARGE, pace=pace))
    assert pace.pool.value == before >= 1000 / LARGE


async def test_closing_does_not_wait_for_what_computes_too_long() -> None:
    work, held = executor(), Held()
    asked = await held.run(work)
    work.close(within_s=0.0)
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert work.batcher.in_flight == 0
    held.go()


def test_a_computation_that_was_interrupted_does_not_leave_the_loop() -> None:
    pace, estimate_us = Pace(), INLINE_US / 2
    for _ in range(20):
        for took_us in (INLINE_US / 4, 50 * INLINE_US, INLINE_US / 4):
            pace.add_on_loop(took_us, estimate_us)
            assert pace.fits_loop(estimate_us)


def test_work_that_takes_longer_than_estimated_leaves_the_loop_and_is_tried_there_again() -> None:
    pace, estimate_us = Pace(), INLINE_US / 2
    for _ in range(2):
        assert pace.fits_loop(estimate_us)
        pace.add_on_loop(50 * INLINE_US, estimate_us)
    assert not pace.fits_loop(estimate_us)
    tries = sum(1 for _ in iter(lambda: pace.fits_loop(estimate_us), True))
    assert 10 < tries < 1000
    for _ in range(20):
        pace.add_on_loop(estimate_us, estimate_us)
    assert pace.fits_loop(estimate_us)
    assert not pace.fits_loop(INLINE_US)
    pace = Pace()
    pace.loop.add(2.0)
    assert not pace.fits_loop(INLINE_US / 2)


def test_the_loop_learns_how_long_its_own_work_takes(work: Executor) -> None:
    here, pace = threading.get_ident(), Pace()

    def compute() -> int:
        end = perf_counter_ns() + 20 * 1000 * INLINE_US
        while perf_counter_ns() < end:
            pass
        return threading.get_ident()

    for _ in range(2):  # one may have been interrupted
        assert asyncio.run(run(work, compute, SMALL, pace=pace))[0] == here
    assert asyncio.run(run(work, compute, SMALL, pace=pace))[0] != here


def rows_of(work: Executor, rows: int, compute: Callable[[slice], Any], **options: Any) -> Any:
    asked = TopKRequest(np.arange(rows)[:, None], 1)
    request = PreparedRequest(rows, 1, 0, 0, "", lambda: asked)

    def answer(request: TopKRequest) -> Any:
        numbers = request.hidden_states[:, 0].tolist()
        return compute(slice(numbers[0], numbers[-1] + 1))

    engine: Any = SimpleNamespace(answer=answer)
    about: dict[str, Any] = {"estimate_us": 1000.0 * rows, "pace": Pace(), "time_left_s": None}
    about["arrived_ns"] = perf_counter_ns()
    return work.run(engine, request, **about | options)


async def test_nothing_more_is_computed_for_who_has_gone(work: Executor) -> None:
    parts, held = list[slice](), Held()

    def compute(part: slice) -> TopKReply:
        parts.append(part)
        held()
        return reply_of(part.stop - part.start)

    asked = asyncio.create_task(rows_of(work, 1000, compute))
    await held.begun()
    asked.cancel()
    await asyncio.wait((asked,))
    held.go()
    assert (await run(work, lambda: "next", LARGE))[0] == "next"
    assert parts == [slice(0, BATCH_ROWS)]
    assert (work.batcher.in_flight, work.batcher.rows) == (0, 0)


async def test_a_request_of_many_draws_takes_turns_with_others(work: Executor) -> None:
    order, held = list[str](), Held()

    def compute(part: slice) -> TopKReply:
        held()
        order.append("part")
        return reply_of(part.stop - part.start)

    long = asyncio.create_task(rows_of(work, 6, compute, extra_us=3 * PART_US))
    await held.begun()
    short = asyncio.create_task(run(work, lambda: order.append("short"), LARGE))
    await asyncio.sleep(0)
    held.go()
    await short
    assert len((await long)[0].ids) == 6
    assert order == ["part", "short", "part", "part"]


def test_what_surely_comes_too_late_is_not_begun(work: Executor) -> None:
    pace = Pace()
    pace.pool.add(1.0)
    late = rows_of(work, 1, cast(Any, pytest.fail), estimate_us=1e7, time_left_s=1.0, pace=pace)
    with pytest.raises(DeadlineExceeded, match=r"about 10 s, 1 s are left"):
        asyncio.run(late)
    in_doubt = rows_of(work, 1, lambda _: "found", estimate_us=3e8, time_left_s=100.0, pace=pace)
    assert asyncio.run(in_doubt)[0] == "found"


async def test_the_time_before_arrival_counts_against_patience(work: Executor) -> None:
    work.admit(0.2, waited_s=0.1)
    with pytest.raises(Overloaded, match="left"):  # though no thread works
        work.admit(0.1, waited_s=0.2)
    pace, held = Pace(), Held()
    pace.pool.add(1.0)
    first = await held.run(work, 1e5, pace=pace)
    waiting = asyncio.create_task(run(work, lambda: "in time", LARGE, 1.0))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="left"):
        work.admit(1.0, waited_s=1.0)
    held.go()
    await asyncio.gather(first, waiting)
