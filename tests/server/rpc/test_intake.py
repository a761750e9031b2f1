"""Who is read next, for how long, and with how much of the memory."""

import asyncio
import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from logitsieve.api.errors import DeadlineExceeded, InvalidRequest, Overloaded, Unavailable
from logitsieve.server import ServeConfig
from logitsieve.server.rpc.intake import COPIES, MOST_WAITING, OF_ADDRESS, Intake
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.conftest import Serve
from tests.server.messages import GOOD, SPEC, RawStream, asked
from tests.server.running import WAIT_S
from tools.fuzz.services import Context

NEVER_S = 3600.0
OTHERS = [f"ipv4:10.0.{number}.7:999" for number in range(8)]


class Silent(Context):
    """A call without a message, from a connection."""

    def __init__(self, peer: str = OTHERS[0]) -> None:
        super().__init__()
        self.connection = peer
        self.sends = asyncio.Event()

    def peer(self) -> str:
        return self.connection

    async def read(self) -> Any:
        await self.sends.wait()
        return b"message"


async def message(intake: Intake, context: Silent) -> bytes:
    return (await intake.message(context))[0]


def reading(intake: Intake, *contexts: Silent) -> list[asyncio.Task[bytes]]:
    return [asyncio.create_task(message(intake, context)) for context in contexts]


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def prove(intake: Intake, *peers: str) -> None:
    """Let each connection bring a message."""
    for peer in peers:
        context = Silent(peer)
        context.sends.set()
        await asyncio.create_task(intake.message(context))
    await turns()
    assert not intake.bytes


def patient(most: int, longest: int, reply: int = 0) -> Intake:
    return Intake(COPIES * most, longest, reply, quick_s=NEVER_S)


async def test_the_connection_with_fewest_is_next_and_a_call_counts_as_what_it_has() -> None:
    intake, order, read = patient(100, 60), list[str](), asyncio.Event()

    async def call(name: str, peer: str) -> None:
        context = Silent(peer)
        context.sends.set()
        _, held = await intake.message(context)
        order.append(name)
        await read.wait()
        held.shrink(10)

    asked_for = [("a1", OTHERS[0]), ("b1", OTHERS[1]), ("b2", OTHERS[1]), ("c1", OTHERS[2])]
    asked_for.append(("d1", OTHERS[3]))
    calls = [asyncio.create_task(call(name, peer)) for name, peer in asked_for]
    await turns()
    assert (order, intake.bytes, intake.calls, intake.waiting) == (["a1"], 60, 5, 4)
    read.set()
    await asyncio.wait_for(asyncio.gather(*calls), WAIT_S)
    await turns()
    assert order == ["a1", "d1", "c1", "b1", "b2"]  # of new connections the newest
    assert (intake.bytes, intake.calls, intake.waiting) == (0, 0, 0)


async def test_who_gives_up_holds_nothing() -> None:
    intake = patient(100, 60)
    first = await intake.enter(90, OTHERS[0])
    enter = [asyncio.create_task(intake.enter(60, peer)) for peer in OTHERS[1:4]]
    await asyncio.sleep(0)
    gives_up, granted, stays = enter
    gives_up.cancel()
    await asyncio.sleep(0)
    intake.leave(first)  # the turn of `granted`, who is cancelled before it can take it
    granted.cancel()
    last = await asyncio.wait_for(stays, WAIT_S)
    assert intake.bytes == 60
    intake.leave(last)
    assert (intake.bytes, intake.calls, intake.waiting) == (0, 0, 0)


async def test_a_message_that_is_larger_than_all_is_let_in_alone() -> None:
    intake = patient(100, 60)
    first = await intake.enter(1000, OTHERS[0])
    waits = asyncio.create_task(intake.enter(1, OTHERS[1]))
    await asyncio.sleep(0)
    assert not waits.done()
    intake.leave(first)
    await asyncio.wait_for(waits, WAIT_S)


async def test_a_call_counts_with_the_largest_reply_until_its_own_is_known() -> None:
    intake = patient(400, 20, reply=30)

    async def call(reply: int, counted: int) -> None:
        context = Silent()
        context.sends.set()
        _, held = await intake.message(context)
        assert intake.bytes == 50
        held.shrink(10 + reply)
        assert intake.bytes == counted

    for reply, counted in ((5, 15), (30, 40), (1000, 50)):
        await asyncio.create_task(call(reply, counted))
        await asyncio.sleep(0)
        assert (intake.bytes, intake.calls) == (0, 0)


async def test_a_connection_and_an_address_leave_memory_to_others() -> None:
    """A quarter of 1000 takes two messages, half of it five."""
    intake = patient(1000, 100)
    silent = [f"ipv4:10.0.0.7:{port}" for port in (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)]
    await prove(intake, *silent)
    calls = reading(intake, *map(Silent, silent))
    await turns()
    assert (intake.bytes, intake.waiting) == (500, len(silent) - 5)
    other = Silent(OTHERS[1])
    other.sends.set()
    assert await asyncio.wait_for(message(intake, other), WAIT_S) == b"message"
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_a_message_that_does_not_come_ends_its_call() -> None:
    intake = Intake(COPIES * 100, 60, message_s=0.0, quick_s=0.0)
    (call,) = reading(intake, Silent())
    with pytest.raises(DeadlineExceeded, match="no message came within 0 s"):
        await asyncio.wait_for(call, WAIT_S)
    await asyncio.sleep(0)
    assert (intake.bytes, intake.calls) == (0, 0)


async def test_calls_that_have_not_been_read_end_when_the_server_stops() -> None:
    intake = Intake(COPIES * 100, 60, message_s=NEVER_S)
    calls = reading(intake, *map(Silent, OTHERS[:3]))
    await turns()
    assert (intake.calls, intake.waiting) == (3, 2)
    intake.give_up()
    ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), WAIT_S)
    assert all(isinstance(error, Unavailable) for error in ended)
    await turns()
    assert (intake.bytes, intake.calls, intake.waiting) == (0, 0, 0)


async def test_slow_messages_leave_half_of_the_memory_while_others_wait() -> None:
    intake = Intake(COPIES * 400, 100, message_s=NEVER_S, quick_s=0.0)
    await prove(intake, *OTHERS[:4])
    slow = reading(intake, *map(Silent, OTHERS[:4]))
    await turns(20)
    assert not any(call.done() for call in slow)  # as long as there is memory
    quick = Silent(OTHERS[4])
    quick.sends.set()
    assert await asyncio.wait_for(message(intake, quick), WAIT_S) == b"message"
    ended = await asyncio.wait_for(asyncio.gather(*slow[2:], return_exceptions=True), WAIT_S)
    assert all(isinstance(error, Overloaded) for error in ended)
    assert not any(call.done() for call in slow[:2])
    for call in slow[:2]:
        call.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_a_connection_that_asks_seldom_is_read_before_those_that_crowd() -> None:
    intake = patient(100, 60)
    first = await intake.enter(60, OTHERS[0])
    crowd = [asyncio.create_task(intake.enter(60, OTHERS[1])) for _ in range(3)]
    await turns()
    intake.leave(first)  # to the crowd's first call
    seldom = asyncio.create_task(intake.enter(60, OTHERS[2]))
    await turns()
    intake.leave(await crowd[0])
    await asyncio.wait_for(seldom, WAIT_S)
    for call in crowd[1:]:
        call.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)


async def test_calls_that_wait_are_refused_beyond_a_number_of_them() -> None:
    """An address has half of the places; a connection with fewer takes one of the most's."""
    intake, of_address = patient(100, 60), int(MOST_WAITING * OF_ADDRESS)
    await intake.enter(90, OTHERS[0])
    calls = reading(intake, *(Silent() for _ in range(of_address + 1)))
    calls += reading(intake, *(Silent(OTHERS[1]) for _ in range(of_address)))
    with pytest.raises(Overloaded, match="calls wait to be read"):
        await calls[of_address]
    await turns()
    assert intake.waiting == MOST_WAITING
    calls += reading(intake, Silent(OTHERS[2]), Silent(OTHERS[2]))
    await turns()
    assert [call.done() for call in calls[-2:]] == [False, False]
    assert sum(call.done() for call in calls) == 3
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (intake.bytes, intake.calls, intake.waiting) == (90, 1, 0)


async def test_connections_that_bring_messages_are_read_beside_any_number_that_do_not() -> None:
    """All of one address, which has five places; silent ones have three."""
    intake, proven = patient(1000, 100), "ipv4:10.0.0.7:1"
    await prove(intake, proven)
    silent = [Silent(f"ipv4:10.0.0.7:{port}") for port in range(2, 302) for _ in range(2)]
    calls = reading(intake, *silent)
    await turns()
    assert (intake.bytes, intake.waiting) == (300, int(MOST_WAITING * OF_ADDRESS))
    for _ in range(10):
        context = Silent(proven)
        context.sends.set()
        assert await asyncio.create_task(message(intake, context)) == b"message"
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (intake.bytes, intake.calls, intake.waiting) == (0, 0, 0)


async def test_a_connection_whose_message_did_not_come_is_behind_new_ones() -> None:
    intake = Intake(COPIES * 100, 60, message_s=NEVER_S, quick_s=0.0)
    late, new = Silent(OTHERS[0]), Silent(OTHERS[1])
    new.sends.set()
    (first,) = reading(intake, late)
    await turns()
    again = reading(intake, late)
    with pytest.raises(Overloaded, match="slow"):
        await asyncio.wait_for(first, WAIT_S)
    held = await intake.enter(90, OTHERS[2])
    again += reading(intake, late)
    answered = reading(intake, new)
    await turns()
    intake.leave(held)
    assert await asyncio.wait_for(answered[0], WAIT_S) == b"message"
    for call in again:
        call.cancel()
    await asyncio.gather(*again, return_exceptions=True)


async def test_the_wait_for_memory_ends_in_a_refusal() -> None:
    intake = Intake(COPIES * 100, 60, wait_s=0.0)
    held = await intake.enter(90, OTHERS[0])
    with pytest.raises(Overloaded, match="no memory for the request"):
        await asyncio.wait_for(intake.enter(60, OTHERS[1]), WAIT_S)
    intake.leave(held)
    assert (intake.bytes, intake.calls, intake.waiting) == (0, 0, 0)


async def test_a_call_without_a_message_is_a_bad_one() -> None:
    class Empty(Silent):
        async def read(self) -> Any:
            return grpc.aio.EOF

    (call,) = reading(patient(100, 60), Empty())
    with pytest.raises(InvalidRequest, match="a message"):
        await call


async def test_connections_that_do_not_take_replies_are_cut() -> None:
    cut: asyncio.Queue[set[str]] = asyncio.Queue()
    intake = Intake(COPIES * 100, 60, quick_s=0.0, reply_s=0.0, cut=cut.put_nowait)

    async def call() -> None:
        context = Silent()
        context.sends.set()
        _, held = await intake.message(context)
        intake.reply(held)
        await asyncio.get_running_loop().create_future()

    calling = asyncio.create_task(call())
    assert await asyncio.wait_for(cut.get(), WAIT_S) == {OTHERS[0]}
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    await asyncio.sleep(0)
    assert (intake.bytes, intake.calls) == (0, 0)


@pytest.mark.parametrize("streams", [False, True])
def test_over_a_real_port(serve: Serve, streams: bool) -> None:
    assert ServeConfig().max_message_bytes(24) > 1 << 20  # so one call is read at a time

    def ask(number: int) -> int:
        if streams:
            stream = RawStream(run.channel)
            reply = stream.ask(asked("TopK", number)).id
            stream.half_close()
            return int(reply)
        run.raw("Decoder/TopK", GOOD["TopK"].SerializeToString())
        return number

    with serve(request_memory_mib=1) as run, ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(1, 101), timeout=WAIT_S)) == list(range(1, 101))


def test_a_call_that_failed_keeps_no_message(serve: Serve) -> None:
    hidden_states = put(pb.Tensor(), np.full((1000, 24), np.nan, np.float32))
    not_finite = pb.TopKRequest(
        model_spec=SPEC, hidden_states=hidden_states, k=3
    ).SerializeToString()
    with serve() as run:
        check = "/grpc.health.v1.Health/Check"

        def fail(method: str, message: bytes) -> None:
            with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
                run.channel.unary_unary(method)(message, timeout=WAIT_S)

        garbage, top_k = b"\xff" * 300_000, "/logitsieve.v1.Decoder/TopK"
        for method, message in ((top_k, garbage), (top_k, not_finite), (check, garbage)):
            fail(method, message)
            gc.collect()
            gc.disable()  # a collection would hide what failures hold until the next one
            tracemalloc.start()
            try:
                for _ in range(20):
                    fail(method, message)
                assert tracemalloc.get_traced_memory()[0] < 5 * len(message)
            finally:
                tracemalloc.stop()
                gc.enable()
