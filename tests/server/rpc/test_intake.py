"""Calls wait to be read, in order, while too many bytes are in memory."""

import asyncio
import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from logitsieve.server import ServeConfig
from logitsieve.server.rpc.intake import COPIES, MOST_WAITING, Intake, expect
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.conftest import Serve
from tests.server.messages import GOOD, TARGET, RawStream, asked
from tests.server.running import WAIT_S

UNARY = grpc.unary_unary_rpc_method_handler(None)
TOP_K, CHECK = "/logitsieve.v1.Decoder/TopK", "/grpc.health.v1.Health/Check"


async def arrive(intake: Intake, method: str = TOP_K) -> Any:
    async def continuation(details: Any) -> grpc.RpcMethodHandler:
        return UNARY

    return await intake.intercept_service(continuation, SimpleNamespace(method=method))


async def test_the_oldest_is_next_and_a_call_counts_as_what_it_has() -> None:
    intake, read = Intake(COPIES * 100, 60), asyncio.Event()
    order: list[int] = []

    async def call(number: int) -> None:
        await arrive(intake)
        order.append(number)
        await read.wait()
        expect(10)
        await asyncio.sleep(0)

    calls = [asyncio.create_task(call(number)) for number in range(4)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert (order, intake.bytes, intake.calls) == ([0], 60, 4)
    await arrive(intake, CHECK)  # health is never kept waiting
    read.set()
    await asyncio.wait_for(asyncio.gather(*calls), WAIT_S)
    await asyncio.sleep(0)
    assert (order, intake.bytes, intake.calls) == ([0, 1, 2, 3], 0, 0)


async def test_who_gives_up_holds_nothing() -> None:
    intake = Intake(COPIES * 100, 60)
    first = await intake.enter(90)
    gives_up, granted, stays = (asyncio.create_task(intake.enter(60)) for _ in range(3))
    await asyncio.sleep(0)
    gives_up.cancel()
    await asyncio.sleep(0)
    first.leave()  # the turn of `granted`, who is cancelled before it can take it
    granted.cancel()
    last = await asyncio.wait_for(stays, WAIT_S)
    assert intake.bytes == 60
    last.leave()
    assert (intake.bytes, intake.calls) == (0, 0)


async def test_a_message_that_is_larger_than_all_is_let_in_alone() -> None:
    intake = Intake(COPIES * 100, 60)
    first = await intake.enter(1000)
    waits = asyncio.create_task(intake.enter(1))
    await asyncio.sleep(0)
    assert not waits.done()
    first.leave()
    await asyncio.wait_for(waits, WAIT_S)


async def test_a_call_counts_with_the_largest_reply_until_its_own_is_known() -> None:
    intake = Intake(COPIES * 100, 20, reply=30)

    async def call(reply: int, counted: int) -> None:
        await arrive(intake)
        assert intake.bytes == 50
        expect(10 + reply)
        assert intake.bytes == counted

    for reply, counted in ((5, 15), (30, 40), (1000, 50)):
        await asyncio.create_task(call(reply, counted))
        await asyncio.sleep(0)
        assert (intake.bytes, intake.calls) == (0, 0)


async def test_calls_that_wait_are_refused_beyond_a_number_of_them() -> None:
    intake = Intake(COPIES * 100, 60)
    await intake.enter(90)
    calls = [asyncio.create_task(arrive(intake)) for _ in range(MOST_WAITING + 1)]
    refused = await calls[-1]
    assert refused.request_streaming  # so nothing of it is read
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (intake.bytes, intake.calls) == (90, 1)


def test_streams_beyond_the_most_are_refused(serve: Serve) -> None:
    with serve(max_streams=2) as run:
        streams = [RawStream(run) for _ in range(2)]
        for stream in streams:
            assert stream.ask(asked("TopK", 1)).id == 1
        with pytest.raises(grpc.RpcError, match="2 streams are open") as caught:
            RawStream(run).ask(asked("TopK", 1))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        streams[0].half_close()
        assert streams[0].rest() == []
        assert RawStream(run).ask(asked("TopK", 1)).id == 1


@pytest.mark.parametrize("streams", [False, True])
def test_over_a_real_port(serve: Serve, streams: bool) -> None:
    assert ServeConfig().max_message_bytes(24) > 1 << 20  # so one call is read at a time

    def ask(number: int) -> int:
        if streams:
            stream = RawStream(run)
            reply = stream.ask(asked("TopK", number)).id
            stream.half_close()
            return int(reply)
        run.raw("Decoder/TopK", GOOD["TopK"].SerializeToString())
        return number

    with serve(request_memory_mb=1) as run, ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(1, 101), timeout=WAIT_S)) == list(range(1, 101))


def test_a_call_that_failed_keeps_no_message(serve: Serve) -> None:
    hidden = put(pb.Tensor(), np.full((1000, 24), np.nan, np.float32))
    not_finite = pb.TopKRequest(target=TARGET, hidden=hidden, k=3).SerializeToString()
    with serve() as run:

        def fail(message: bytes) -> None:
            with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
                run.raw("Decoder/TopK", message)

        for message in (b"\xff" * 300_000, not_finite):
            fail(message)
            gc.collect()
            gc.disable()  # a collection would hide what failures hold until the next one
            tracemalloc.start()
            try:
                for _ in range(20):
                    fail(message)
                assert tracemalloc.get_traced_memory()[0] < 5 * len(message)
            finally:
                tracemalloc.stop()
                gc.enable()
