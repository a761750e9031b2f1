"""Requests of a Decode stream that wait for their replies, for both kinds of clients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import ceil
from threading import Lock
from typing import Any, Generic, TypeVar

import grpc

from logitsieve.api.errors import (
    DeadlineExceeded,
    LogitsieveError,
    RequestTooLarge,
    Unavailable,
)
from logitsieve.client.errors import of_message
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import Rpc

ToException = Callable[[grpc.RpcError], LogitsieveError]
M = TypeVar("M")  # where one reply is awaited


class PendingReplies(Generic[M]):
    """Messages of a stream and the mailboxes of their replies; thread-safe.

    `put(mailbox, reply)` is called at most once for each: with the response, or with the failure
    that ended the stream, or None where the stream ended without one.
    """

    def __init__(
        self,
        mailbox: Callable[[], M],
        put: Callable[[M, Any], object],
        max_message_bytes: int,
        to_exception: ToException,
    ) -> None:
        self._mailbox, self._put, self._to_exception = mailbox, put, to_exception
        self._max_message_bytes = max_message_bytes
        self._ids = count(1)
        self._waiting: dict[int, M] = {}  # by id
        self._lock = Lock()  # of `_ended` and of what is added to `_waiting`
        self._ended = ""  # why, once it has

    def write(self, rpc: Rpc[Any], request: Any, timeout_s: float) -> tuple[pb.DecodeRequest, M]:
        """Return a message and the mailbox of its reply; `forget` the message at the end.

        RequestTooLarge, or Unavailable where the stream has ended.
        """
        message = pb.DecodeRequest(
            id=next(self._ids), timeout_ms=ceil(timeout_s * 1000), **{rpc.field: request}
        )
        if (size := message.ByteSize()) > self._max_message_bytes:
            raise RequestTooLarge("request", f"{size} bytes", f"{self._max_message_bytes} bytes")
        with self._lock:
            if self._ended:
                raise self._over()
            self._waiting[message.id] = mailbox = self._mailbox()
        return message, mailbox

    def forget(self, message: pb.DecodeRequest) -> None:
        """Drop a message: its reply, if there will be one, is for no one."""
        self._waiting.pop(message.id, None)

    def deliver(self, response: pb.DecodeResponse) -> None:
        """Put a response into its mailbox, unless its timeout has passed."""
        if (mailbox := self._waiting.pop(response.id, None)) is not None:
            self._put(mailbox, response)

    def open(self, rpc: Rpc[Any], reply: Any) -> Any:
        """Return the response in a mailbox's reply, or raise the exception that it stands for."""
        if isinstance(reply, grpc.RpcError):
            raise self._to_exception(reply) from reply
        if reply is None:
            raise self._over()
        if reply.HasField("error"):
            raise of_message(reply.error)
        return getattr(reply, rpc.field)

    def end(self, reason: str, failure: grpc.RpcError | None = None) -> None:
        """Fail all calls, under way and to come; the first reason stays."""
        with self._lock:
            self._ended = self._ended or reason
            for request_id in list(self._waiting):
                if (mailbox := self._waiting.pop(request_id, None)) is not None:
                    self._put(mailbox, failure)

    def end_by(self, failure: grpc.RpcError) -> None:
        """End with the failure that broke the stream."""
        self.end(str(self._to_exception(failure)), failure)

    def end_by_server(self) -> None:
        """End where the server closed the stream without a failure."""
        self.end("the server closed it")

    def _over(self) -> Unavailable:
        return Unavailable(f"the stream has ended: {self._ended}")


def too_late(timeout_s: float) -> DeadlineExceeded:
    """Make the exception for a reply that has not come in time."""
    return DeadlineExceeded(f"no answer within {timeout_s:g} s")
