import asyncio
import os
import threading

import pytest

from logitsieve.api.errors import DeadlineExceeded, ModelNotFound, Overloaded, Unavailable
from logitsieve.console.desk import AT_ONCE, MOST_WAITING, Desk
from logitsieve.decoding import LocalDecoder
from logitsieve.server.models.routes import Routes
from logitsieve.server.precision import NICE
from tests.server.running import WAIT_S


def let_in(time_left_s: float | None) -> None:
    pass


def test_work_runs_at_a_lower_priority_and_under_a_lease(routes: Routes) -> None:
    desk = Desk(lambda: routes, let_in)

    def work(decoder: LocalDecoder) -> tuple[str, int]:
        return decoder.version, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert asyncio.run(desk.run(work, "demo@2")) == ("2", NICE)
    with pytest.raises(ModelNotFound):
        asyncio.run(desk.run(work, "unknown"))
    desk.close()
    with pytest.raises(Unavailable):
        asyncio.run(desk.run(work, "demo@2"))


async def test_two_at_once_and_no_more_than_a_few_waiting(routes: Routes) -> None:
    entered, leaving = threading.Semaphore(0), threading.Event()
    running: list[int] = []

    def work(decoder: LocalDecoder) -> None:
        running.append(1)
        entered.release()
        assert leaving.wait(WAIT_S)

    desk = Desk(lambda: routes, let_in)
    asked = [asyncio.create_task(desk.run(work, "demo")) for _ in range(MOST_WAITING)]
    for _ in range(AT_ONCE):
        await asyncio.to_thread(entered.acquire, timeout=WAIT_S)
    assert len(running) == AT_ONCE
    with pytest.raises(Overloaded):
        await desk.run(work, "demo")
    leaving.set()
    assert await asyncio.gather(*asked) == [None] * MOST_WAITING
    desk.close()


async def test_what_a_server_refuses_and_what_takes_too_long(routes: Routes) -> None:
    def refuse(time_left_s: float | None) -> None:
        raise Overloaded("too much is in flight", 0.1)

    desk, leaving = Desk(lambda: routes, refuse), threading.Event()
    with pytest.raises(Overloaded):
        await desk.run(lambda decoder: None, "demo")
    desk.close()
    desk = Desk(lambda: routes, let_in, answer_s=0.01)
    with pytest.raises(DeadlineExceeded):
        await desk.run(lambda decoder: leaving.wait(WAIT_S), "demo")
    leaving.set()
    await asyncio.to_thread(desk.close)
