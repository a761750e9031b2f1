"""A decoder over one Decode stream, for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from logitsieve.client.async_remote_decoder import AsyncRemoteDecoder
from logitsieve.client.pending_replies import PendingReplies, too_late
from logitsieve.client.stream import OUTBOX
from logitsieve.v1 import decoder_pb2 as pb


class AsyncDecodeStream(AsyncRemoteDecoder):
    """The methods of a decoder over one stream of an `AsyncDecoderClient`; for one event loop.

    Otherwise as DecodeStream: any number of calls at once, each of at most `timeout_s` seconds.
    """

    def __init__(self, decode: Any, *, timeout_s: float, max_message_bytes: int) -> None:
        self.timeout_s = timeout_s
        self._letters: PendingReplies[asyncio.Future[Any]] = PendingReplies(
            asyncio.get_running_loop().create_future, _settle, max_message_bytes
        )
        self._outbox: asyncio.Queue[pb.DecodeRequest] = asyncio.Queue(OUTBOX)
        self._call = decode(self._requests())
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        """End the stream; calls in flight fail."""
        self._letters.end("closed")
        self._call.cancel()
        self._reader.cancel()
        await asyncio.wait((self._reader,))

    async def _ask(self, rpc: str, request: Any) -> Any:
        message, mailbox = self._letters.write(rpc, request, self.timeout_s)
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._outbox.put(message)
                found = await mailbox
        except TimeoutError:
            raise too_late(self.timeout_s) from None
        finally:
            self._letters.forget(message)
        return self._letters.open(rpc, found)

    async def _requests(self) -> AsyncIterator[pb.DecodeRequest]:
        while True:  # until the call is over, which ends this
            yield await self._outbox.get()

    async def _read(self) -> None:
        try:
            async for response in self._call:
                self._letters.deliver(response)
        except grpc.RpcError as failure:
            self._letters.end_by(failure)
        else:
            self._letters.end_by_server()
        finally:
            self._letters.end("closed")  # by the client, where nothing was said before


def _settle(mailbox: asyncio.Future[Any], found: Any) -> None:
    if not mailbox.done():  # by its timeout
        mailbox.set_result(found)
