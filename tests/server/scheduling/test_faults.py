"""A fault at every call of the scheduler and after every await: one request fails, nothing hangs.

A trace function raises at the n-th function that is entered or resumed, in whichever thread, for
n = 1, 2, ... until a scene passes without a fault.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from types import FrameType
from typing import Any, cast

import numpy as np
import pytest

from logitsieve.api.requests import TopKRequest
from logitsieve.api.results import TopKReply
from logitsieve.server import ServeConfig
from logitsieve.server.scheduling import batcher, executor, request
from logitsieve.server.scheduling.executor import Executor
from logitsieve.server.scheduling.request import BATCH_ROWS, INLINE_US
from tests.server.faults import Fault, Walk
from tests.server.running import WAIT_S
from tests.server.scheduling.test_executor import joinable, reply_of

# Entered by a thread or an event loop, which ends with it or loses it.
CALLED_BY_PYTHON = {"_work", "_deliver"}
CALLBACKS = {"count_batch", "device_ns"}  # of this file, called by the scheduler
WALKED = {module.__file__ for module in (batcher, executor, request)}
LARGE_US = 100 * INLINE_US


def walked(frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_filename == __file__:
        return code.co_name in CALLBACKS
    return code.co_filename in WALKED and code.co_name not in CALLED_BY_PYTHON


@contextmanager
def walking(walk: Walk) -> Iterator[None]:
    before = sys.gettrace()
    threading.settrace(walk)
    sys.settrace(walk)
    try:
        yield
    finally:
        walk.end()
        sys.settrace(before)
        threading.settrace(cast(Any, None))


class Point:
    def answer(self, request: TopKRequest) -> TopKReply:
        return reply_of(len(request.hidden_states))


async def ask(work: Executor, rows: int, estimate_us: float, **more: Any) -> Any:
    hidden_states = np.zeros((rows, 4), np.float32)
    return await joinable(work, Point(), hidden_states, estimate_us=estimate_us, **more)


async def one_on_the_loop(work: Executor) -> list[Any]:
    return [ask(work, 1, INLINE_US / 2)]


async def a_batch(work: Executor) -> list[Any]:
    return [ask(work, rows, LARGE_US) for rows in (1, 2, 3)]


async def parts(work: Executor) -> list[Any]:
    return [ask(work, 3 * BATCH_ROWS, 1e6), ask(work, 1, LARGE_US)]


async def too_late(work: Executor) -> list[Any]:
    return [ask(work, BATCH_ROWS, 1e5), ask(work, 1, LARGE_US, time_left_s=1e-9)]


SCENES: list[Callable[[Executor], Any]] = [one_on_the_loop, a_batch, parts, too_late]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_fault_anywhere_fails_requests_and_nothing_else(
    scene: Callable[[Executor], Any], caplog: pytest.LogCaptureFixture
) -> None:
    config = ServeConfig(threads=1, max_in_flight=9, batch_delay_us=0)
    counted = list[int]()

    def count_batch(rows: int) -> None:
        counted.append(rows)

    def device_ns() -> int:
        return 0

    async def play(work: Executor) -> list[Any]:
        asked = [asyncio.create_task(each) for each in await scene(work)]
        done, hanging = await asyncio.wait(asked, timeout=WAIT_S)
        assert not hanging
        return [each.exception() or each.result() for each in done]

    async def again(work: Executor) -> Any:
        with suppress(Fault):  # of the scene, in a thread that comes to it only now
            return await asyncio.wait_for(ask(work, 2, LARGE_US), WAIT_S)
        return await asyncio.wait_for(ask(work, 2, LARGE_US), WAIT_S)

    for number in count(1):
        walk = Walk(number, walked)
        with walking(walk):
            work = None
            try:
                work = Executor(config, count_batch=count_batch, device_ns=device_ns)
                outcomes = asyncio.run(play(work))
            except Fault:  # while it was made
                outcomes = []
        if work is None:
            continue
        failed = [one for one in outcomes if isinstance(one, Exception)]
        assert len(asyncio.run(again(work))[0].ids) == 2, walk.at
        left = work.batcher.in_flight, work.batcher.rows, round(work.batcher.wait_s, 9)
        assert left == (0, 0, 0.0), walk.at
        work.close()
        if not walk.at:
            assert min(counted, default=1) > 0
            return
        others = [one for one in failed if not isinstance(one, Fault)]
        assert all(type(one).__name__ == "DeadlineExceeded" for one in others), (walk.at, others)
