from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, cast

import pytest

from logitsieve.decoding.point import Point
from logitsieve.server.methods import Asked
from logitsieve.server.work import INLINE_US, Work
from logitsieve.types.errors import DeadlineExceeded, Overloaded, Unavailable
from tests.server.running import WAIT_S

NO_POINT = cast(Point, None)
SMALL, LARGE = INLINE_US / 2, INLINE_US * 2


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work(threads=1, max_in_flight=2, max_queue_rows=100)
    yield work
    work.close()


async def run(
    work: Work, compute: Callable[[], Any], estimate_us: float, time_left_s: float | None = None
) -> tuple[Any, int]:
    return await work.run(
        NO_POINT,
        Asked(1, 1, 0, 0, lambda point: compute()),
        estimate_us=estimate_us,
        arrived_ns=perf_counter_ns(),
        time_left_s=time_left_s,
    )


def test_small_work_stays_on_the_loop_and_large_work_leaves_it(work: Work) -> None:
    here = threading.get_ident()
    assert asyncio.run(run(work, threading.get_ident, SMALL))[0] == here
    assert asyncio.run(run(work, threading.get_ident, LARGE))[0] != here


@pytest.mark.parametrize("estimate_us", [SMALL, LARGE])
def test_an_expired_deadline_is_seen_before_computing(work: Work, estimate_us: float) -> None:
    with pytest.raises(DeadlineExceeded):
        asyncio.run(run(work, pytest.fail, estimate_us, time_left_s=0.0))


@pytest.mark.parametrize("estimate_us", [SMALL, LARGE])
def test_errors_come_back(work: Work, estimate_us: float) -> None:
    def fail() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        asyncio.run(run(work, fail, estimate_us))


def test_no_more_than_max_in_flight_and_the_cancelled_is_never_computed(work: Work) -> None:
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
        assert work.queue_rows == 1
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
        assert work.queue_rows == 0  # its place is free at once
        release.set()
        assert (await first)[0] == "first"
        assert (await run(work, lambda: "next", LARGE))[0] == "next"
        work.admit(None)

    asyncio.run(scene())


def test_closing_finishes_what_is_computing_and_cancels_what_waits() -> None:
    work = Work(threads=1, max_in_flight=9, max_queue_rows=9)

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
        while work.queue_rows:
            await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await run(work, pytest.fail, LARGE)
        release.set()
        assert (await first)[0] == "first"
        await closing
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scene())
