"""A decoder over one Decode stream: a message costs less than a call of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from math import ceil
from queue import Empty, Full, Queue, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Any

import grpc

from logitsieve.client.connection import Closing
from logitsieve.client.errors import of_message, to_exception
from logitsieve.client.remote import RemoteDecoder
from logitsieve.types.errors import DeadlineExceeded, RequestTooLarge, Unavailable
from logitsieve.v1 import decoder_pb2 as pb

# Requests that wait to be sent; a caller beyond that waits for its turn.
OUTBOX = 64

FIELDS = {"TopK": "top_k", "BeamStep": "beam_step", "Sample": "sample", "Score": "score"}


class DecodeStream(Closing, RemoteDecoder):
    """The methods of a decoder over one stream of a `DecoderClient`; thread-safe.

    Each call takes at most `timeout_s` seconds. Nothing is retried and a stream that breaks is not
    opened again: calls under way raise what broke it, usually Unavailable, later ones Unavailable.
    """

    def __init__(self, decode: Any, *, timeout_s: float, max_message_bytes: int) -> None:
        self.timeout_s, self._max_message_bytes = timeout_s, max_message_bytes
        self._ids = count(1)
        self._waiting: dict[int, SimpleQueue[Any]] = {}  # by id, where the response is awaited
        self._lock = Lock()  # of the two below and of who waits
        self._ended = ""  # why, once it has
        self._outbox: Queue[pb.DecodeRequest | None] = Queue(OUTBOX)  # None: the last one
        self._call = decode(self._requests())
        self._reader = Thread(target=self._read, name="logitsieve-stream", daemon=True)
        self._reader.start()

    def close(self) -> None:
        """End the stream; calls in flight fail."""
        self._end("closed", None)
        self._call.cancel()
        self._reader.join()

    def _ask(self, rpc: str, request: Any) -> Any:
        until, field = monotonic() + self.timeout_s, FIELDS[rpc]
        message = pb.DecodeRequest(
            id=next(self._ids), timeout_ms=ceil(self.timeout_s * 1000), **{field: request}
        )
        if (size := message.ByteSize()) > self._max_message_bytes:
            raise RequestTooLarge("request", f"{size} bytes", f"{self._max_message_bytes} bytes")
        mailbox = self._await(message.id)
        try:
            self._outbox.put(message, timeout=self.timeout_s)
            response = mailbox.get(timeout=max(0.0, until - monotonic()))
        except (Full, Empty):
            raise DeadlineExceeded(f"no answer within {self.timeout_s:g} s") from None
        finally:
            self._waiting.pop(message.id, None)
        return self._opened(response, field)

    def _opened(self, response: Any, field: str) -> Any:
        """What lay in a mailbox: a response, or None or the failure that ended the stream."""
        if isinstance(response, grpc.RpcError):
            raise to_exception(response) from response
        if response is None:
            raise Unavailable(f"the stream has ended: {self._ended}")
        if response.HasField("error"):
            raise of_message(response.error)
        return getattr(response, field)

    def _await(self, request_id: int) -> SimpleQueue[Any]:
        mailbox: SimpleQueue[Any] = SimpleQueue()
        with self._lock:
            if self._ended:
                raise Unavailable(f"the stream has ended: {self._ended}")
            self._waiting[request_id] = mailbox
        return mailbox

    def _requests(self) -> Iterator[pb.DecodeRequest]:
        while (message := self._outbox.get()) is not None:
            yield message

    def _read(self) -> None:
        try:
            for response in self._call:
                # Nobody waits for an answer that comes after its timeout.
                if mailbox := self._waiting.pop(response.id, None):
                    mailbox.put(response)
        except grpc.RpcError as failure:
            self._end(str(to_exception(failure)), failure)
        else:
            self._end("the server closed it", None)

    def _end(self, reason: str, failure: grpc.RpcError | None) -> None:
        with self._lock:
            self._ended = self._ended or reason
            for request_id in list(self._waiting):
                if mailbox := self._waiting.pop(request_id, None):
                    mailbox.put(failure)
        with suppress(Full):  # then gRPC meets another message, and sees that the call is over
            self._outbox.put_nowait(None)
