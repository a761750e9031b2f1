"""What the two clients of a Decode stream share: who waits for which answer, and why it ended."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import ceil
from threading import Lock
from typing import Any, Generic, TypeVar

import grpc

from logitsieve.api.errors import DeadlineExceeded, RequestTooLarge, Unavailable
from logitsieve.client.errors import of_message, to_exception
from logitsieve.v1 import decoder_pb2 as pb

FIELDS = {"TopK": "top_k", "BeamStep": "beam_step", "Sample": "sample", "Score": "score"}

M = TypeVar("M")  # where one answer is awaited


class PendingReplies(Generic[M]):
    """Messages of a stream and the mailboxes of their answers; thread-safe.

    `put(mailbox, what)` is called once at most for each: with the response, or with the failure or
    None that ended the stream.
    """

    def __init__(
        self, mailbox: Callable[[], M], put: Callable[[M, Any], object], max_message_bytes: int
    ) -> None:
        self._mailbox, self._put = mailbox, put
        self._max_message_bytes = max_message_bytes
        self._ids = count(1)
        self._waiting: dict[int, M] = {}  # by id
        self._lock = Lock()  # of the one below and of who waits
        self._ended = ""  # why, once it has

    def write(self, rpc: str, request: Any, timeout_s: float) -> tuple[pb.DecodeRequest, M]:
        """A message, and where its answer will be; `forget` it then.

        RequestTooLarge, or Unavailable where the stream has ended.
        """
        message = pb.DecodeRequest(
            id=next(self._ids), timeout_ms=ceil(timeout_s * 1000), **{FIELDS[rpc]: request}
        )
        if (size := message.ByteSize()) > self._max_message_bytes:
            raise RequestTooLarge("request", f"{size} bytes", f"{self._max_message_bytes} bytes")
        with self._lock:
            if self._ended:
                raise self._over()
            self._waiting[message.id] = mailbox = self._mailbox()
        return message, mailbox

    def forget(self, message: pb.DecodeRequest) -> None:
        """Nobody waits for its answer any more."""
        self._waiting.pop(message.id, None)

    def deliver(self, response: pb.DecodeResponse) -> None:
        """To whoever waits for it: nobody, where it comes after its timeout."""
        if (mailbox := self._waiting.pop(response.id, None)) is not None:
            self._put(mailbox, response)

    def open(self, rpc: str, found: Any) -> Any:
        """The response that lay in a mailbox, or the exception that it stands for."""
        if isinstance(found, grpc.RpcError):
            raise to_exception(found) from found
        if found is None:
            raise self._over()
        if found.HasField("error"):
            raise of_message(found.error)
        return getattr(found, FIELDS[rpc])

    def end(self, reason: str, failure: grpc.RpcError | None = None) -> None:
        """Tell all who wait, and all who come; the first reason stays."""
        with self._lock:
            self._ended = self._ended or reason
            for request_id in list(self._waiting):
                if (mailbox := self._waiting.pop(request_id, None)) is not None:
                    self._put(mailbox, failure)

    def end_by(self, failure: grpc.RpcError) -> None:
        """The stream broke."""
        self.end(str(to_exception(failure)), failure)

    def end_by_server(self) -> None:
        """The stream ended without a word."""
        self.end("the server closed it")

    def _over(self) -> Unavailable:
        return Unavailable(f"the stream has ended: {self._ended}")


def too_late(timeout_s: float) -> DeadlineExceeded:
    """What is raised where no answer comes in time."""
    return DeadlineExceeded(f"no answer within {timeout_s:g} s")
