"""AsyncDecoderClient: the methods of DecoderClient to be awaited, over grpc.aio."""

from __future__ import annotations

from typing import Any

import grpc

from logitsieve.client.async_stream import AsyncDecodeStream
from logitsieve.client.decoder_client import DecoderConnection
from logitsieve.client.models import Listing, ModelInfo, model_info
from logitsieve.client.remote_decoder import AsyncRemoteDecoder
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import Rpc


class AsyncDecoderClient(DecoderConnection, AsyncRemoteDecoder):
    """A decoder at `address`, for the event loop in which it is made.

    Takes the arguments of `DecoderClient`: `timeout_s`, `max_message_bytes`, `keepalive_s`, `tls`
    and `token`.
    """

    api = grpc.aio

    def stream(self, *, timeout_s: float | None = None) -> AsyncDecodeStream:
        """Open a decoder whose calls share one stream; close it, or use it in an `async with`.

        Each of its calls takes at most `timeout_s` seconds, by default as many as this client's.
        """
        return AsyncDecodeStream(self._decoder.Decode, **self._stream_options(timeout_s))

    async def models(self) -> list[ModelInfo]:
        """Return every version that the server knows, without operating points."""
        listing = Listing()
        while not listing.whole:
            listing.add(await self._call(self._models.List, listing.request))
        return listing.models

    async def model(self, name: str) -> ModelInfo:
        """Return the version that "name", "name@version" or "name:alias" means.

        Raises ModelNotFound.
        """
        return model_info(await self._call(self._models.Get, pb.GetModelRequest(model=name)))

    async def close(self) -> None:
        """Close the channel; calls in flight fail."""
        await self._channel.close()

    async def _ask(self, rpc: Rpc[Any], request: Any) -> Any:
        return await self._call(getattr(self._decoder, rpc.name), request)

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise self._exception(failure) from failure
