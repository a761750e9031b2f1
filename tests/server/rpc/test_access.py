"""Calls and streams without a key fail."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
import pytest

from logitsieve.server.metrics import Call, Metrics
from logitsieve.server.rpc.entrance import Entrance
from logitsieve.server.rpc.stream import DecodeStreams
from logitsieve.server.security import READ, ApiKeys
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.conftest import Serve
from tests.server.materials import write_api_keys
from tests.server.messages import Code, RawStream, asked, error_of
from tools.fuzz.services import Aborted, Context

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

    def invocation_metadata(self) -> Any:
        return HEADER

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
    """Decode streams behind a key; `asked` are the requests, a second one is not answered."""

    def __init__(self, folder: Path, recheck_s: float) -> None:
        self._file = write_api_keys(folder, f"read:{OLD}\n")
        self._api_keys, self.metrics = ApiKeys(self._file), Metrics()
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
        assert self._api_keys.renew()

    async def open(self, context: Client) -> asyncio.Task[None]:
        """Call as a port does, with the old key; return when the first message is answered."""

        decode = {"Decode": grpc.stream_stream_rpc_method_handler(self._streams.decode)}
        service = grpc.method_handlers_generic_handler("logitsieve.v1.Decoder", decode)
        intakes = context.intake, context.intake
        entrance = Entrance((service,), *intakes, self.metrics, self._api_keys, READ)
        details = SimpleNamespace(method=DECODE, invocation_metadata=HEADER)
        handler: Any = entrance.service(details)
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
    file = write_api_keys(tmp_path, f"read:{OLD}\n")
    with serve(api_key_file=file) as run:
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
