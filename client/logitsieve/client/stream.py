"""A decoder over one Decode stream: a message costs less than a call of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Full, Queue, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

import grpc

from logitsieve.client.connection import Closing
from logitsieve.client.pending_replies import PendingReplies, ToException, too_late
from logitsieve.client.remote_decoder import RemoteDecoder
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import Rpc

# Requests that may wait to be sent: further callers block.
OUTBOX = 64


class DecodeStream(Closing, RemoteDecoder):
    """The methods of a decoder over one stream of a `DecoderClient`; thread-safe.

    Each call takes at most `timeout_s` seconds. Nothing is retried and a stream that breaks is not
    opened again: calls under way raise what broke it, usually Unavailable, later ones Unavailable.
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
        self._pending: PendingReplies[SimpleQueue[Any]] = PendingReplies(
            SimpleQueue, SimpleQueue.put, max_message_bytes, to_exception
        )
        self._outbox: Queue[pb.DecodeRequest | None] = Queue(OUTBOX)  # None: the last one
        self._call = decode(self._requests(), metadata=metadata)
        self._reader = Thread(target=self._read, name="logitsieve-stream", daemon=True)
        self._reader.start()

    def close(self) -> None:
        """End the stream; calls in flight fail."""
        self._pending.end("closed")
        self._send_no_more()
        self._call.cancel()
        self._reader.join()

    def _ask(self, rpc: Rpc[Any], request: Any) -> Any:
        until = monotonic() + self.timeout_s
        message, mailbox = self._pending.write(rpc, request, self.timeout_s)
        try:
            self._outbox.put(message, timeout=self.timeout_s)
            reply = mailbox.get(timeout=max(0.0, until - monotonic()))
        except (Full, Empty):
            raise too_late(self.timeout_s) from None
        finally:
            self._pending.forget(message)
        return self._pending.open(rpc, reply)

    def _requests(self) -> Iterator[pb.DecodeRequest]:
        while (message := self._outbox.get()) is not None:
            yield message

    def _read(self) -> None:
        try:
            for response in self._call:
                self._pending.deliver(response)
        except grpc.RpcError as failure:
            self._pending.end_by(failure)
        else:
            self._pending.end_by_server()
        self._send_no_more()

    def _send_no_more(self) -> None:
        with suppress(Full):  # then gRPC meets another message, and sees that the call is over
            self._outbox.put_nowait(None)
