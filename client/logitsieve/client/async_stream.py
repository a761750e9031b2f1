"""A decoder over one Decode stream, for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from logitsieve.client.pending_replies import PendingReplies, ToException, too_late
from logitsieve.client.remote_decoder import AsyncRemoteDecoder
from logitsieve.client.stream import OUTBOX
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import Rpc


class AsyncDecodeStream(AsyncRemoteDecoder):
    """The methods of a decoder over one stream of an `AsyncDecoderClient`; for one event loop.

    Any number of calls may be under way, each for at most `timeout_s` seconds. Nothing is retried:
    if the stream breaks, calls under way raise the reason and later ones Unavailable.
    """

    def __init__(
        self,
        decode: Any,
        *,
        timeout_s: float,
        metadata: Any,
        max_message_bytes: int,
        to_exception: ToException,
    ) -> None:
        self.timeout_s = timeout_s
        self._pending: PendingReplies[asyncio.Future[Any]] = PendingReplies(
            asyncio.get_running_loop().create_future, _settle, max_message_bytes, to_exception
        )
        self._outbox: asyncio.Queue[pb.DecodeRequest] = asyncio.Queue(OUTBOX)
        self._call = decode(self._requests(), metadata=metadata)
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        """End the stream; calls in flight fail."""
        self._pending.end("closed")
        self._call.cancel()
        self._reader.cancel()
        await asyncio.wait((self._reader,))

    async def _ask(self, rpc: Rpc[Any], request: Any) -> Any:
        message, mailbox = self._pending.write(rpc, request, self.timeout_s)
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._outbox.put(message)
                reply = await mailbox
        except TimeoutError:
            raise too_late(self.timeout_s) from None
        finally:
            self._pending.forget(message)
        return self._pending.open(rpc, reply)

    async def _requests(self) -> AsyncIterator[pb.DecodeRequest]:
        while True:  # until the call is over, which ends this
            yield await self._outbox.get()

    async def _read(self) -> None:
        try:
            async for response in self._call:
                self._pending.deliver(response)
        except grpc.RpcError as failure:
            self._pending.end_by(failure)
        else:
            self._pending.end_by_server()
        finally:
            self._pending.end("closed")  # by the client, where nothing was said before


def _settle(mailbox: asyncio.Future[Any], reply: Any) -> None:
    if not mailbox.done():  # by its timeout
        mailbox.set_result(reply)
