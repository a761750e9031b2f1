"""AsyncDecoderClient: the methods of DecoderClient to be awaited, over grpc.aio."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc

from logitsieve.client.async_remote_decoder import AsyncRemoteDecoder
from logitsieve.client.async_stream import AsyncDecodeStream
from logitsieve.client.channel import Tls, open_channel, to_metadata, to_target
from logitsieve.client.connection import seconds
from logitsieve.client.decoder_client import (
    KEEPALIVE_S,
    MAX_MESSAGE_BYTES,
    TIMEOUT_S,
    channel_options,
)
from logitsieve.client.errors import to_exception
from logitsieve.client.models import Listing, ModelInfo, model_info
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import DecoderStub, ModelsStub


class AsyncDecoderClient(AsyncRemoteDecoder):
    """A decoder at `address`, for one event loop; make it within that. See `DecoderClient`."""

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
        self._max_message_bytes = max_message_bytes
        self._metadata = to_metadata(token, self.address, tls)
        options = channel_options(max_message_bytes, keepalive_s)
        self._channel = open_channel(self.address, tls, options, grpc.aio)
        self._decoder = DecoderStub(self._channel)
        self._models = ModelsStub(self._channel)

    def stream(self, *, timeout_s: float | None = None) -> AsyncDecodeStream:
        """A decoder whose calls share one stream; close it, or use it in an `async with`.

        Each of its calls takes at most `timeout_s` seconds, or as many as those of this client.
        """
        return AsyncDecodeStream(
            partial(self._decoder.Decode, metadata=self._metadata),
            timeout_s=self.timeout_s if timeout_s is None else seconds(timeout_s),
            max_message_bytes=self._max_message_bytes,
        )

    async def models(self) -> list[ModelInfo]:
        """Every version that the server knows, without operating points."""
        listing = Listing()
        while not listing.whole:
            listing.add(await self._call(self._models.List, listing.request))
        return listing.found

    async def model(self, name: str) -> ModelInfo:
        """The version that "name", "name@version" or "name:alias" means, or ModelNotFound."""
        return model_info(await self._call(self._models.Get, pb.GetModelRequest(model=name)))

    async def close(self) -> None:
        """Close the channel; calls in flight fail."""
        await self._channel.close()

    async def _ask(self, rpc: str, request: Any) -> Any:
        return await self._call(getattr(self._decoder, rpc), request)

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise to_exception(failure) from failure
