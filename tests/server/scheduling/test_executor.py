from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, cast

import numpy as np
import pytest

from logitsieve.api.errors import DeadlineExceeded, DeviceLost, Overloaded, Unavailable
from logitsieve.api.results import Answer, RowRange, TopKReply
from logitsieve.decoding.engine import Engine
from logitsieve.server import ServeConfig
from logitsieve.server.scheduling.executor import INLINE_US, Executor, joined
from logitsieve.server.scheduling.request import PreparedRequest, RunningMean
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
) -> tuple[Any, int, int]:
    return await work.run(
        NO_POINT,
        PreparedRequest(1, 1, 0, 0, lambda point: compute()),
        estimate_us=estimate_us,
        pace=RunningMean(),
        arrived_ns=perf_counter_ns(),
        time_left_s=time_left_s,
        offloaded=offloaded,
    )


def test_small_work_stays_on_the_loop_and_large_work_leaves_it(work: Executor) -> None:
    here = threading.get_ident()
    assert asyncio.run(run(work, threading.get_ident, SMALL))[0] == here
    assert asyncio.run(run(work, threading.get_ident, LARGE))[0] != here


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
        request = PreparedRequest(1, 5, 0, 0, lambda point: point.topk(hidden, 5), hidden)
        options: Any = {"estimate_us": LARGE, "pace": RunningMean(), "arrived_ns": 0}
        both = [
            asyncio.create_task(work.run(point, request, time_left_s=seconds, **options))
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
