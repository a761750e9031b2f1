"""Tokens of streams: asked for at each message, and now and then while there is none."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from logitsieve.server.metrics import Metrics
from logitsieve.server.rpc.access import LASTING, Access
from logitsieve.server.security.secrets import READ, Tokens
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.messages import Code, asked, error_of
from tests.server.running import WAIT_S, Loop, config_for, running

OLD, NEW = "token-of-yesterday", "token-of-tomorrow"
HEADER = (("authorization", f"Bearer {OLD}"),)
NEVER_S, AT_ONCE_S = 3600.0, 0.001


class Aborted(grpc.aio.AbortError):  # type: ignore[misc]  # the library is untyped
    """What gRPC raises when a call is aborted."""


class FakeContext:
    """A client that sends what is put into `messages`."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.code: grpc.StatusCode | None = None

    async def read(self) -> bytes:
        return await self.messages.get()

    async def abort(self, code: grpc.StatusCode, *more: Any) -> None:
        self.code = code
        raise Aborted


class Echo:
    """A stream that notes what it reads, until it reads an empty message."""

    def __init__(self) -> None:
        self.read: asyncio.Queue[bytes] = asyncio.Queue()
        self.cancelled = False

    async def __call__(self, messages: object, context: Any) -> None:
        try:
            while message := await context.read():
                self.read.put_nowait(message)
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def handler_of(
    file: Path, stream: Any, again_s: float, given: list[Tokens] | None = None
) -> Callable[[object, FakeContext], Awaitable[None]]:
    """What a port calls for a Decode stream that was opened by the old token."""
    file.write_text(f"read:{OLD}\n")
    file.chmod(0o600)

    async def continuation(details: Any) -> grpc.RpcMethodHandler:
        return grpc.stream_stream_rpc_method_handler(stream)

    tokens = Tokens(file)
    if given is not None:
        given.append(tokens)
    access = Access(tokens, READ, Metrics(), again_s)
    details = SimpleNamespace(method=LASTING, invocation_metadata=HEADER)
    handler: Any = await access.intercept_service(continuation, details)
    found: Callable[[object, FakeContext], Awaitable[None]] = handler.stream_stream
    return found


def test_a_message_after_the_token_was_revoked_is_not_read(tmp_path: Path) -> None:
    async def scene() -> None:
        echo, context, file, given = Echo(), FakeContext(), tmp_path / "tokens", list[Tokens]()
        handler = await handler_of(file, echo, NEVER_S, given)
        call = asyncio.ensure_future(handler(None, context))
        context.messages.put_nowait(b"one")
        assert await echo.read.get() == b"one"
        file.write_text(f"read:{NEW}\n")
        assert given[0].renew()
        context.messages.put_nowait(b"two")
        with pytest.raises(Aborted):
            await call
        assert context.code is Code.UNAUTHENTICATED
        assert echo.read.empty()

    asyncio.run(scene())


def test_a_silent_stream_is_asked_too(tmp_path: Path) -> None:
    async def scene() -> None:
        echo, context, file, given = Echo(), FakeContext(), tmp_path / "tokens", list[Tokens]()
        handler = await handler_of(file, echo, AT_ONCE_S, given)
        call = asyncio.ensure_future(handler(None, context))
        context.messages.put_nowait(b"one")
        assert await echo.read.get() == b"one"
        file.write_text(f"read:{NEW}\n")
        assert given[0].renew()
        with pytest.raises(Aborted):
            await call
        assert context.code is Code.UNAUTHENTICATED
        assert echo.cancelled

    asyncio.run(scene())


def test_a_stream_whose_token_stays_ends_as_it_would(tmp_path: Path) -> None:
    async def scene() -> None:
        context, file = FakeContext(), tmp_path / "tokens"
        handler = await handler_of(file, Echo(), AT_ONCE_S)
        call = asyncio.ensure_future(handler(None, context))
        context.messages.put_nowait(b"one")
        file.write_text(f"read:{NEW}\nread:{OLD}\n")
        context.messages.put_nowait(b"")
        await call
        assert context.code is None

        async def failing(messages: object, context: Any) -> None:
            raise ZeroDivisionError

        with pytest.raises(Aborted):
            await (await handler_of(file, failing, NEVER_S))(None, context)
        assert context.code is Code.INTERNAL

    asyncio.run(scene())


def test_a_client_that_leaves_takes_its_stream_along(tmp_path: Path) -> None:
    async def scene() -> None:
        echo, context = Echo(), FakeContext()
        handler = await handler_of(tmp_path / "tokens", echo, NEVER_S)
        call = asyncio.ensure_future(handler(None, context))
        context.messages.put_nowait(b"one")
        assert await echo.read.get() == b"one"
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert echo.cancelled

    asyncio.run(scene())


def test_over_a_real_port(loop: Loop, models: Path, kernel_cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"read:{OLD}\n")
    file.chmod(0o600)
    config = config_for(models, kernel_cache=kernel_cache, tokens=file)
    with running(loop, config) as run:
        outbox: SimpleQueue[bytes | None] = SimpleQueue()
        decode = run.channel.stream_stream("/logitsieve.v1.Decoder/Decode")
        call = decode(iter(outbox.get, None), timeout=WAIT_S, metadata=HEADER)
        outbox.put(asked("TopK", 1).SerializeToString())
        assert pb.DecodeResponse.FromString(next(call)).id == 1
        file.write_text(f"read:{NEW}\n")
        with pytest.raises(grpc.RpcError) as caught:
            next(call)  # the file is read again within half a second, and the stream asked
        assert caught.value.code() is Code.UNAUTHENTICATED
        assert error_of(caught.value).field == "authorization"
        outbox.put(None)
