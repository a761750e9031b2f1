import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from time import perf_counter_ns, sleep
from typing import Any, cast

import numpy as np
import pytest

from logitsieve.api.errors import DeadlineExceeded, DeviceLost, Overloaded, Unavailable
from logitsieve.api.results import Answer, RowRange, TopKReply
from logitsieve.decoding.engine import Engine
from logitsieve.server import ServeConfig
from logitsieve.server.scheduling.batcher import Batcher
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

NO_POINT = cast(Engine, None)
SMALL, LARGE = INLINE_US / 2, INLINE_US * 2


def executor(
    *,
    count_batch: Callable[[int], object] | None = None,
    lose_device: Callable[[DeviceLost], object] | None = None,
    device_ns: Callable[[], int] | None = None,
    **options: int,
) -> Executor:
    config = ServeConfig(**{"batch_delay_us": 0} | options)  # type: ignore[arg-type]
    return Executor(config, count_batch=count_batch, lose_device=lose_device, device_ns=device_ns)


@pytest.fixture
def work() -> Iterator[Executor]:
    work = executor(threads=1, max_in_flight=2, max_queue_rows=100)
    yield work
    work.close()


async def run(
    work: Executor,
    compute: Callable[[], Any],
    estimate_us: float,
    time_left_s: float | None = None,
    *,
    offloaded: bool = False,
    pace: Pace | None = None,
) -> tuple[Any, int, int]:
    return await work.run(
        NO_POINT,
        PreparedRequest(1, 1, 0, 0, lambda point, rows: compute()),
        estimate_us=estimate_us,
        pace=pace or Pace(),
        arrived_ns=perf_counter_ns(),
        time_left_s=time_left_s,
        offloaded=offloaded,
    )


def test_small_work_stays_on_the_loop_and_large_work_leaves_it(work: Executor) -> None:
    here = threading.get_ident()
    paces = [Pace() for _ in range(9)]
    for pace in paces:
        assert asyncio.run(run(work, threading.get_ident, SMALL, pace=pace))[::2] == (here, 0)
    assert min(pace.loop.value for pace in paces) < WORST
    assert asyncio.run(run(work, threading.get_ident, LARGE))[0] != here


def test_a_batch_waits_for_more_as_long_as_the_options_say() -> None:
    work = executor(threads=1, batch_delay_us=200)
    assert work.batcher._delay_s == pytest.approx(2e-4)
    work.close()


def test_what_waits_for_a_gpu_never_stays_on_the_loop(work: Executor) -> None:
    here = threading.get_ident()
    assert asyncio.run(run(work, threading.get_ident, SMALL, offloaded=True))[0] != here


@pytest.mark.parametrize("estimate_us", [SMALL, LARGE])
def test_an_expired_deadline_is_seen_before_computing(work: Executor, estimate_us: float) -> None:
    with pytest.raises(DeadlineExceeded):
        asyncio.run(run(work, pytest.fail, estimate_us, time_left_s=0.0))


def test_what_computes_knows_the_deadline_of_its_request(work: Executor) -> None:
    left = asyncio.run(run(work, time_left, LARGE, 30.0))[0]
    assert 0 < left <= 30.0
    assert asyncio.run(run(work, time_left, LARGE))[0] is None


def reply_of(rows: int, missing: tuple[RowRange, ...] = ()) -> TopKReply:
    nothing, none = np.zeros(rows, np.bool_), np.zeros(rows, np.int32)
    answer = Answer("m", "1", "", "exact", nothing, none, nothing, rows_missing=missing)
    return TopKReply(np.zeros((rows, 5), np.int32), np.zeros((rows, 5), np.float32), answer)


def test_a_batch_has_the_time_of_its_most_patient_request() -> None:
    left: list[float | None] = []
    work = executor(threads=1, max_in_flight=8, max_queue_rows=100)

    class Point:
        def topk(self, hidden: np.ndarray, k: int) -> TopKReply:
            left.append(time_left())
            return reply_of(len(hidden))

    async def scene() -> None:
        started, release = threading.Event(), threading.Event()

        def block() -> None:
            started.set()
            assert release.wait(WAIT_S)

        first = asyncio.create_task(run(work, block, LARGE))
        assert await asyncio.to_thread(started.wait, WAIT_S)
        hidden, point = np.zeros((1, 4), np.float32), cast(Engine, Point())
        asked = PreparedRequest(1, 5, 0, 0, lambda point, part: point.topk(hidden[part], 5), hidden)
        options: Any = {"estimate_us": LARGE, "pace": Pace()}
        options["arrived_ns"] = perf_counter_ns()
        both = [
            asyncio.create_task(work.run(point, asked, time_left_s=seconds, **options))
            for seconds in (WAIT_S, 100.0 * WAIT_S)
        ]
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(first, *both)

    asyncio.run(scene())
    work.close()
    (given,) = left
    assert given is not None
    assert given > 10 * WAIT_S


def test_joined_parts_say_every_row_that_was_missing() -> None:
    ranges = RowRange(0, 256), RowRange(512, 256)
    parts = [reply_of(2), reply_of(1, ranges[1:]), reply_of(1, ranges)]
    assert joined(parts).answer.rows_missing == ranges


@pytest.mark.parametrize("estimate_us", [SMALL, LARGE])
def test_errors_come_back(work: Executor, estimate_us: float) -> None:
    def fail() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        asyncio.run(run(work, fail, estimate_us))


def test_no_more_than_max_in_flight_and_the_cancelled_is_never_computed(work: Executor) -> None:
    async def scene() -> None:
        started, release = threading.Event(), threading.Event()

        def block() -> str:
            started.set()
            assert release.wait(WAIT_S)
            return "first"

        first = asyncio.create_task(run(work, block, LARGE))
        assert await asyncio.to_thread(started.wait, WAIT_S)
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
        release.set()
        assert (await first)[0] == "first"
        assert (await run(work, lambda: "next", LARGE))[0] == "next"
        work.admit(None)

    asyncio.run(scene())


def test_closing_finishes_what_is_computing_and_cancels_what_waits() -> None:
    work = executor(threads=1, max_in_flight=9, max_queue_rows=9)

    async def scene() -> None:
        started, release = threading.Event(), threading.Event()

        def block() -> str:
            started.set()
            assert release.wait(WAIT_S)
            return "first"

        first = asyncio.create_task(run(work, block, LARGE))
        assert await asyncio.to_thread(started.wait, WAIT_S)
        waiting = asyncio.create_task(run(work, pytest.fail, LARGE))
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(work.close))
        while work.batcher.rows:
            await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await run(work, pytest.fail, LARGE)
        release.set()
        assert (await first)[0] == "first"
        await closing
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scene())


def test_a_request_is_told_how_long_a_gpu_worked_for_it() -> None:
    worked = threading.local()

    def compute() -> str:
        worked.ns = getattr(worked, "ns", 0) + 40
        return "found"

    work = executor(
        threads=1, max_in_flight=9, max_queue_rows=9, device_ns=lambda: getattr(worked, "ns", 0)
    )
    for _ in range(2):
        reply, _, device_ns = asyncio.run(run(work, compute, SMALL, offloaded=True))
        assert (reply, device_ns) == ("found", 40)
    work.close()


def test_a_lost_gpu_is_told_to_the_server_and_to_who_asked() -> None:
    told: list[DeviceLost] = []
    work = executor(threads=1, max_in_flight=9, max_queue_rows=9, lose_device=told.append)
    error = DeviceLost("cuda:0", "CUDA error: unspecified launch failure")

    def fail() -> None:
        raise error

    with pytest.raises(DeviceLost):
        asyncio.run(run(work, fail, LARGE))
    assert told == [error]
    work.close()


def test_a_fault_beside_computing_fails_its_request_and_the_thread_lives_on() -> None:
    faults = [MemoryError("no room to join parts")]

    def device_ns() -> int:
        if faults:
            raise faults.pop()
        return 0

    work = executor(threads=1, max_in_flight=9, max_queue_rows=9, device_ns=device_ns)
    with pytest.raises(MemoryError):
        asyncio.run(run(work, pytest.fail, LARGE))
    assert asyncio.run(run(work, lambda: "next", LARGE))[0] == "next"
    assert work.batcher.in_flight == 0
    work.close()


def test_a_pace_is_not_learnt_from_failures(work: Executor) -> None:
    pace = Pace()

    def fail() -> None:
        raise KeyError("k")

    for compute in (lambda: sleep(1e-3), fail):
        before = pace.pool.value
        with contextlib.suppress(KeyError):
            asyncio.run(run(work, compute, LARGE, pace=pace))
    assert pace.pool.value == before >= 1000 / LARGE


def test_closing_does_not_wait_for_what_computes_too_long() -> None:
    work, started, release = executor(threads=1), threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        release.wait(WAIT_S)

    async def scene() -> None:
        asked = asyncio.create_task(run(work, block, LARGE))
        assert await asyncio.to_thread(started.wait, WAIT_S)
        work.close(within_s=0.0)
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(scene())
    assert work.batcher.in_flight == 0
    release.set()


def test_work_that_takes_longer_than_estimated_leaves_the_loop_and_is_tried_there_again() -> None:
    pace, estimate_us = Pace(), INLINE_US / 2
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

    assert asyncio.run(run(work, compute, SMALL, pace=pace))[0] == here
    assert asyncio.run(run(work, compute, SMALL, pace=pace))[0] != here


def rows_of(work: Executor, rows: int, compute: Callable[[slice], Any], **options: Any) -> Any:
    """Run a request of rows that may be computed in parts."""
    request = PreparedRequest(rows, 1, 0, 0, lambda point, part: compute(part))
    about: dict[str, Any] = {"estimate_us": 1000.0 * rows, "pace": Pace(), "time_left_s": None}
    about["arrived_ns"] = perf_counter_ns()
    return work.run(NO_POINT, request, **about | options)


def test_nothing_more_is_computed_for_who_has_gone(work: Executor) -> None:
    parts: list[slice] = []
    first, go_on = threading.Event(), threading.Event()

    def compute(part: slice) -> TopKReply:
        parts.append(part)
        first.set()
        assert go_on.wait(WAIT_S)
        return reply_of(part.stop - part.start)

    async def scene() -> None:
        asked = asyncio.create_task(rows_of(work, 1000, compute))
        assert await asyncio.to_thread(first.wait, WAIT_S)
        asked.cancel()
        await asyncio.wait((asked,))
        go_on.set()
        assert (await run(work, lambda: "next", LARGE))[0] == "next"

    asyncio.run(scene())
    assert parts == [slice(0, BATCH_ROWS)]


def test_a_request_of_many_draws_takes_turns_with_others(work: Executor) -> None:
    order: list[str] = []
    started, release = threading.Event(), threading.Event()

    def compute(part: slice) -> TopKReply:
        started.set()
        assert release.wait(WAIT_S)
        order.append("part")
        return reply_of(part.stop - part.start)

    async def scene() -> None:
        long = asyncio.create_task(rows_of(work, 6, compute, extra_us=3 * PART_US))
        assert await asyncio.to_thread(started.wait, WAIT_S)
        short = asyncio.create_task(run(work, lambda: order.append("short"), LARGE))
        await asyncio.sleep(0)
        release.set()
        await short
        assert len((await long)[0].ids) == 6

    asyncio.run(scene())
    assert order == ["part", "short", "part", "part"]


def test_what_surely_comes_too_late_is_not_begun(work: Executor) -> None:
    pace = Pace()
    pace.pool.add(1.0)
    late = rows_of(work, 1, cast(Any, pytest.fail), estimate_us=1e7, time_left_s=1.0, pace=pace)
    with pytest.raises(DeadlineExceeded, match=r"about 10 s, 1 s are left"):
        asyncio.run(late)
    in_doubt = rows_of(work, 1, lambda _: "found", estimate_us=3e8, time_left_s=100.0, pace=pace)
    assert asyncio.run(in_doubt)[0] == "found"


def test_the_time_before_arrival_counts_against_patience() -> None:
    work, pace = executor(threads=1, max_in_flight=9), Pace()
    pace.pool.add(1.0)
    started, release = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        assert release.wait(WAIT_S)

    async def scene() -> None:
        first = asyncio.create_task(run(work, block, 1e5, pace=pace))
        assert await asyncio.to_thread(started.wait, WAIT_S)
        waiting = asyncio.create_task(run(work, lambda: "in time", LARGE, 1.0))
        await asyncio.sleep(0)
        work.admit(1.0)
        with pytest.raises(Overloaded, match="left"):
            work.admit(1.0, waited_s=1.0)
        release.set()
        await asyncio.gather(first, waiting)

    asyncio.run(scene())
    work.close()


def test_a_request_that_waited_too_long_to_be_read_is_refused_though_no_thread_works(
    work: Executor,
) -> None:
    work.admit(0.2, waited_s=0.1)
    with pytest.raises(Overloaded, match="left"):
        work.admit(0.1, waited_s=0.2)


class Faulty:
    """Raises at the n-th call of any of its methods; passes others on."""

    def __init__(self, queue: Batcher, method: str) -> None:
        self._queue, self._method = queue, method

    def __getattr__(self, name: str) -> Any:
        if name != self._method:
            return getattr(self._queue, name)
        self._method = ""
        return self._fail

    def _fail(self, *arguments: Any) -> None:
        raise MemoryError("injected")


@pytest.mark.parametrize("place", ["take", "done", "count_batch", "device_ns"])
def test_no_fault_at_a_hand_over_makes_a_client_wait(place: str) -> None:
    faults, counted = [MemoryError("injected")], list[int]()

    def fail(*arguments: object) -> int:
        if faults and place in ("count_batch", "device_ns"):
            raise faults.pop()
        return 0

    def count(rows: int) -> None:
        counted.append(rows)
        fail()

    work = executor(threads=1, max_in_flight=9, count_batch=count, device_ns=fail)
    started, release = threading.Event(), threading.Event()

    def block() -> str:
        started.set()
        assert release.wait(WAIT_S)
        return "found"

    async def scene() -> None:
        both = [asyncio.create_task(run(work, block, LARGE)) for _ in range(2)]
        if place != "device_ns":
            assert await asyncio.to_thread(started.wait, WAIT_S)
        if place in ("take", "done"):
            work.batcher = cast(Batcher, Faulty(work.batcher, place))
        release.set()
        gathered = asyncio.gather(*both, return_exceptions=True)
        for outcome in await asyncio.wait_for(gathered, WAIT_S):
            assert isinstance(outcome, MemoryError) or cast(Any, outcome)[0] == "found"
        assert (await run(work, lambda: "next", LARGE))[0] == "next"

    asyncio.run(scene())
    assert (work.batcher.in_flight, work.batcher.rows, work.batcher.wait_s) == (0, 0, 0)
    assert all(rows > 0 for rows in counted)
    work.close()
