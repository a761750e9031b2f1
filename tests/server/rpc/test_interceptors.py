"""Calls wait to be read in order while too many bytes are in memory; those without a token fail."""

import asyncio
import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
import numpy as np
import pytest

from logitsieve.server import ServeConfig
from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.rpc.interceptors import COPIES, MOST_WAITING, Access, Intake, expect
from logitsieve.server.rpc.stream import DecodeStreams
from logitsieve.server.security import READ, Tokens
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.fuzz.services import Aborted, Context
from tests.server.conftest import Serve
from tests.server.materials import write_tokens
from tests.server.messages import GOOD, TARGET, Code, RawStream, asked, error_of
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
        streams = [RawStream(run.channel) for _ in range(2)]
        for stream in streams:
            assert stream.ask(asked("TopK", 1)).id == 1
        with pytest.raises(grpc.RpcError, match="2 streams are open") as caught:
            RawStream(run.channel).ask(asked("TopK", 1))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        streams[0].half_close()
        assert streams[0].rest() == []
        assert RawStream(run.channel).ask(asked("TopK", 1)).id == 1


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


OLD, NEW = "token-of-yesterday", "token-of-tomorrow"
DECODE = "/logitsieve.v1.Decoder/Decode"
HEADER = (("authorization", f"Bearer {OLD}"),)
NEVER_S, AT_ONCE_S = 3600.0, 0.001
COUNTED = b'code="UNAUTHENTICATED",model="unknown",rpc="Decode"'


class Client(Context):
    """A client that sends what is put into `messages`."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.replies: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(self) -> Any:
        return await self.messages.get()

    async def write(self, message: bytes) -> None:
        await self.replies.put(message)

    def send(self, request_id: int) -> None:
        self.messages.put_nowait(asked("TopK", request_id).SerializeToString())

    async def abort(self, code: grpc.StatusCode, message: str, trailer: Any) -> NoReturn:
        assert self.code is Code.OK, "aborted twice"
        await super().abort(code, message, trailer)


class Streams:
    """Decode streams behind a token; `asked` are the requests, a second one is not answered."""

    def __init__(self, folder: Path, recheck_s: float) -> None:
        self._file = write_tokens(folder, f"read:{OLD}\n")
        self._tokens, self.metrics = Tokens(self._file), Metrics()
        self._streams = DecodeStreams(self._answer, self.metrics, 1, recheck_s)
        self.asked = 0
        self.cancelled = False

    async def _answer(self, method: object, request: object, call: Call) -> bytes:
        self.asked += 1
        if self.asked == 1:
            return b""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.cancelled = True
        return b""

    def revoke(self) -> None:
        self._file.write_text(f"read:{NEW}\n")
        assert self._tokens.renew()

    async def open(self, context: Client) -> asyncio.Task[None]:
        """Call as a port does, with the old token; return when the first message is answered."""

        async def continuation(details: Any) -> grpc.RpcMethodHandler:
            return grpc.stream_stream_rpc_method_handler(self._streams.decode)

        access = Access(self._tokens, READ, self.metrics)
        details = SimpleNamespace(method=DECODE, invocation_metadata=HEADER)
        handler: Any = await access.intercept_service(continuation, details)
        call: asyncio.Task[None] = asyncio.ensure_future(handler.stream_stream(None, context))
        context.send(1)
        assert pb.DecodeResponse.FromString(await context.replies.get()).id == 1
        return call

    async def hang(self, context: Client) -> None:
        """Send a second message, which is never answered; return when it is being computed."""
        context.send(2)
        while self.asked < 2:
            await asyncio.sleep(0)


@pytest.mark.parametrize("silent", [False, True])
async def test_a_stream_ends_once_its_token_is_revoked(tmp_path: Path, silent: bool) -> None:
    """A further message is not read; a client that only waits for an answer is asked, too."""
    streams, context = Streams(tmp_path, AT_ONCE_S if silent else NEVER_S), Client()
    call = await streams.open(context)
    if silent:
        await streams.hang(context)
    streams.revoke()
    if not silent:
        context.send(2)
    with pytest.raises(Aborted):
        await call
    assert context.code is Code.UNAUTHENTICATED
    assert (streams.asked, streams.cancelled) == (1 + silent, silent)
    assert COUNTED in streams.metrics.text()


def test_tokens_over_a_real_port(serve: Serve, tmp_path: Path) -> None:
    file = write_tokens(tmp_path, f"read:{OLD}\n")
    with serve(tokens=file) as run:
        stream, ended = (RawStream(run.channel, headers=HEADER) for _ in range(2))
        assert stream.ask(asked("TopK", 1)).id == ended.ask(asked("TopK", 1)).id == 1
        ended.half_close()
        assert ended.rest() == []
        file.write_text(f"read:{NEW}\n")
        with pytest.raises(grpc.RpcError) as caught:
            stream.receive()  # the file is read again within half a second, and the stream asked
        assert caught.value.code() is Code.UNAUTHENTICATED
        assert error_of(caught.value).field == "authorization"
        stream.half_close()
