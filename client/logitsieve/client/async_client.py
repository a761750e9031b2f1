"""AsyncDecoderClient: the methods of DecoderClient to be awaited, over grpc.aio."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import grpc

from logitsieve.client.channel import Tls, open_channel, to_metadata, to_target
from logitsieve.client.connection import seconds
from logitsieve.client.decoder_client import (
    KEEPALIVE_S,
    MAX_MESSAGE_BYTES,
    TIMEOUT_S,
    channel_options,
)
from logitsieve.client.errors import to_exception
from logitsieve.client.models import ModelInfo, model_info
from logitsieve.client.remote import RemoteDecoder
from logitsieve.client.replies import R, to_reply
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import DecoderStub, ModelsStub

P = ParamSpec("P")
T = TypeVar("T")
Awaited = Callable[Concatenate["AsyncDecoderClient", P], Coroutine[Any, Any, T]]


def awaited(method: Callable[Concatenate[RemoteDecoder, P], T]) -> Awaited[P, T]:
    """A method that makes a request and returns what `_reply` does, which is to be awaited here."""
    return cast("Awaited[P, T]", method)


class AsyncDecoderClient:
    """A decoder at `address`, for one event loop; make it within that. See `DecoderClient`."""

    topk = awaited(RemoteDecoder.topk)
    score = awaited(RemoteDecoder.score)
    sample = awaited(RemoteDecoder.sample)
    beam_step = awaited(RemoteDecoder.beam_step)

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        timeout_s: float = TIMEOUT_S,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keepalive_s: float | None = KEEPALIVE_S,
        tls: Tls | None = None,
        token: str = "",
    ) -> None:
        self.address = to_target(address)
        self.timeout_s = seconds(timeout_s)
        self._metadata = to_metadata(token, self.address, tls)
        options = channel_options(max_message_bytes, keepalive_s)
        self._channel = open_channel(self.address, tls, options, grpc.aio)
        self._decoder = DecoderStub(self._channel)
        self._models = ModelsStub(self._channel)

    async def model(self, name: str) -> ModelInfo:
        """The version that "name", "name@version" or "name:alias" means, or ModelNotFound."""
        return model_info(await self._call(self._models.Get, pb.GetModelRequest(model=name)))

    async def close(self) -> None:
        """Close the channel; calls in flight fail."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _reply(self, kind: type[R], rpc: str, request: Any) -> R:
        return to_reply(kind, await self._call(getattr(self._decoder, rpc), request))

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise to_exception(failure) from failure
