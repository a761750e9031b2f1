"""Tokens of streams: asked for at each message, and now and then while there is none."""

import asyncio
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.rpc.access import Access
from logitsieve.server.rpc.stream import DecodeStreams
from logitsieve.server.security.secrets import READ, Tokens
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.messages import Code, asked, error_of
from tests.server.running import WAIT_S, Loop, config_for, running

OLD, NEW = "token-of-yesterday", "token-of-tomorrow"
DECODE = "/logitsieve.v1.Decoder/Decode"
HEADER = (("authorization", f"Bearer {OLD}"),)
NEVER_S, AT_ONCE_S = 3600.0, 0.001
COUNTED = b'code="UNAUTHENTICATED",model="unknown",rpc="Decode"'


class Aborted(grpc.aio.AbortError):  # type: ignore[misc]  # the library is untyped
    """What gRPC raises when a call is aborted."""


class FakeContext:
    """A client that sends what is put into `messages`."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[object] = asyncio.Queue()
        self.written: asyncio.Queue[bytes] = asyncio.Queue()
        self.read, self.write = self.messages.get, self.written.put
        self.code: grpc.StatusCode | None = None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None

    async def send_initial_metadata(self, metadata: object) -> None:
        pass

    def send(self, request_id: int) -> None:
        self.messages.put_nowait(asked("TopK", request_id).SerializeToString())

    async def abort(self, code: grpc.StatusCode, *more: Any) -> None:
        assert self.code is None, "aborted twice"
        self.code = code
        raise Aborted


class Streams:
    """Decode streams behind a token; `asked` are the requests, a second one is not answered."""

    def __init__(self, file: Path, recheck_s: float) -> None:
        file.write_text(f"read:{OLD}\n")
        file.chmod(0o600)
        self._file, self._tokens, self.metrics = file, Tokens(file), Metrics()
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

    def revoke(self, *others: str) -> None:
        self._file.write_text("".join(f"read:{token}\n" for token in (NEW, *others)))
        assert self._tokens.renew()

    async def open(self, context: FakeContext) -> asyncio.Task[None]:
        """Call as a port does, with the old token; return when the first message is answered."""

        async def continuation(details: Any) -> grpc.RpcMethodHandler:
            return grpc.stream_stream_rpc_method_handler(self._streams.decode)

        access = Access(self._tokens, READ, self.metrics)
        details = SimpleNamespace(method=DECODE, invocation_metadata=HEADER)
        handler: Any = await access.intercept_service(continuation, details)
        call: asyncio.Task[None] = asyncio.ensure_future(handler.stream_stream(None, context))
        context.send(1)
        assert pb.DecodeResponse.FromString(await context.written.get()).id == 1
        return call

    async def hang(self, context: FakeContext) -> None:
        """Send a second message, which is never answered; return when it is being computed."""
        context.send(2)
        while self.asked < 2:
            await asyncio.sleep(0)


def test_a_message_after_the_token_was_revoked_is_not_read(tmp_path: Path) -> None:
    async def scene() -> None:
        streams, context = Streams(tmp_path / "tokens", NEVER_S), FakeContext()
        call = await streams.open(context)
        streams.revoke()
        context.send(2)
        with pytest.raises(Aborted):
            await call
        assert context.code is Code.UNAUTHENTICATED
        assert streams.asked == 1
        assert COUNTED in streams.metrics.text()

    asyncio.run(scene())


def test_a_silent_stream_is_asked_too(tmp_path: Path) -> None:
    async def scene() -> None:
        streams, context = Streams(tmp_path / "tokens", AT_ONCE_S), FakeContext()
        call = await streams.open(context)
        await streams.hang(context)
        streams.revoke()
        with pytest.raises(Aborted):
            await call
        assert context.code is Code.UNAUTHENTICATED
        assert streams.cancelled
        assert COUNTED in streams.metrics.text()

    asyncio.run(scene())


def test_a_stream_whose_token_stays_ends_as_it_would(tmp_path: Path) -> None:
    async def scene() -> None:
        streams, context = Streams(tmp_path / "tokens", AT_ONCE_S), FakeContext()
        call = await streams.open(context)
        streams.revoke(OLD)
        context.messages.put_nowait(grpc.aio.EOF)
        await call
        assert context.code is None

    asyncio.run(scene())


def test_a_client_that_leaves_takes_its_stream_along(tmp_path: Path) -> None:
    async def scene() -> None:
        streams, context = Streams(tmp_path / "tokens", NEVER_S), FakeContext()
        call = await streams.open(context)
        await streams.hang(context)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert streams.cancelled

    asyncio.run(scene())


def test_over_a_real_port(loop: Loop, models: Path, kernel_cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"read:{OLD}\n")
    file.chmod(0o600)
    config = config_for(models, kernel_cache=kernel_cache, tokens=file)
    with running(loop, config) as run:
        outbox: SimpleQueue[bytes | None] = SimpleQueue()
        decode = run.channel.stream_stream(DECODE)
        call = decode(iter(outbox.get, None), timeout=WAIT_S, metadata=HEADER)
        outbox.put(asked("TopK", 1).SerializeToString())
        assert pb.DecodeResponse.FromString(next(call)).id == 1
        file.write_text(f"read:{NEW}\n")
        with pytest.raises(grpc.RpcError) as caught:
            next(call)  # the file is read again within half a second, and the stream asked
        assert caught.value.code() is Code.UNAUTHENTICATED
        assert error_of(caught.value).field == "authorization"
        outbox.put(None)
