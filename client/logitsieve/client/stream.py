"""Decoders that send their calls over one stream, where a message costs less than a call."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from math import ceil
from queue import Empty, Full, Queue, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

import grpc

from logitsieve.api.errors import DeadlineExceeded, LogitsieveError, RequestTooLarge, Unavailable
from logitsieve.client.connection import Closing
from logitsieve.client.errors import of_message
from logitsieve.client.remote_decoder import AsyncRemoteDecoder, RemoteDecoder, to_reply
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import Reply, Rpc

OUTBOX = 64  # requests that wait to be sent; more callers block

M = TypeVar("M")  # a mailbox for one reply
R = TypeVar("R", bound=Reply)


class StreamOptions(NamedTuple):
    timeout_s: float  # of each call
    metadata: tuple[tuple[str, str | bytes], ...]
    max_message_bytes: int
    to_exception: Callable[[grpc.RpcError], LogitsieveError]


class PendingReplies(Generic[M]):
    """The messages of a stream that wait for a reply, each with a mailbox. Thread-safe.

    `put(mailbox, reply)` is called once, with the response, or when the stream ends with its
    failure or None.
    """

    def __init__(
        self, mailbox: Callable[[], M], put: Callable[[M, Any], object], options: StreamOptions
    ) -> None:
        self._mailbox, self._put, self._options = mailbox, put, options
        self._ids = count(1)
        self._waiting: dict[int, M] = {}  # by id
        self._lock = Lock()  # for `_ended` and additions to `_waiting`
        self._ended = ""  # the reason, after the end

    def write(self, rpc: Rpc[Any], request: Any) -> tuple[pb.DecodeRequest, M]:
        """Return a message, which the caller must `forget`, and the mailbox of its reply.

        Raises RequestTooLarge, or Unavailable if the stream has ended.
        """
        timeout_ms, most = ceil(self._options.timeout_s * 1000), self._options.max_message_bytes
        message = pb.DecodeRequest(
            id=next(self._ids), timeout_ms=timeout_ms, **{rpc.field: request}
        )
        if (size := message.ByteSize()) > most:
            raise RequestTooLarge("request", f"{size} bytes", f"{most} bytes")
        with self._lock:
            if self._ended:
                raise self._over()
            self._waiting[message.id] = mailbox = self._mailbox()
        return message, mailbox

    def forget(self, message: pb.DecodeRequest) -> None:
        self._waiting.pop(message.id, None)

    def deliver(self, response: pb.DecodeResponse) -> None:
        if (mailbox := self._waiting.pop(response.id, None)) is not None:
            self._put(mailbox, response)

    def open(self, rpc: Rpc[R], put: Any) -> R:
        if isinstance(put, grpc.RpcError):
            raise self._options.to_exception(put) from put
        if put is None:
            raise self._over()
        if put.HasField("error"):
            raise of_message(put.error)
        return to_reply(rpc, getattr(put, rpc.field))

    def end(self, why: str | grpc.RpcError) -> None:
        """Fail all current and future calls; the first reason counts."""
        failure = why if isinstance(why, grpc.RpcError) else None
        reason = why if failure is None else str(self._options.to_exception(failure))
        with self._lock:
            self._ended = self._ended or reason
            for request_id in list(self._waiting):
                if (mailbox := self._waiting.pop(request_id, None)) is not None:
                    self._put(mailbox, failure)

    def _over(self) -> Unavailable:
        return Unavailable(f"the stream has ended: {self._ended}")


class DecodeStream(Closing, RemoteDecoder):
    """A decoder over one stream of a `DecoderClient`. Thread-safe.

    A call takes at most `timeout_s` seconds and is not retried. If the stream breaks, calls raise
    the reason, usually Unavailable.
    """

    def __init__(self, decode: Any, options: StreamOptions) -> None:
        self.timeout_s = options.timeout_s
        self._pending: PendingReplies[SimpleQueue[Any]] = PendingReplies(
            SimpleQueue, SimpleQueue.put, options
        )
        self._outbox: Queue[pb.DecodeRequest | None] = Queue(OUTBOX)  # None ends it
        self._call = decode(self._requests(), metadata=options.metadata)
        self._reader = Thread(target=self._read, name="logitsieve-stream", daemon=True)
        self._reader.start()

    def close(self) -> None:
        self._pending.end("closed")
        self._send_no_more()
        self._call.cancel()
        self._reader.join()

    def _reply(self, rpc: Rpc[R], request: Any) -> R:
        until = monotonic() + self.timeout_s
        message, mailbox = self._pending.write(rpc, request)
        try:
            self._outbox.put(message, timeout=self.timeout_s)
            reply = mailbox.get(timeout=max(0.0, until - monotonic()))
        except (Full, Empty):
            raise _too_late(self.timeout_s) from None
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
            self._pending.end(failure)
        else:
            self._pending.end("the server closed it")
        self._send_no_more()

    def _send_no_more(self) -> None:
        with self._outbox.not_full:  # wakes callers that wait for room, and fail
            self._outbox.maxsize = 1 << 31
            self._outbox.not_full.notify_all()
        self._outbox.put(None)


class AsyncDecodeStream(AsyncRemoteDecoder):
    """A `DecodeStream` for one event loop, which may make many calls at once."""

    def __init__(self, decode: Any, options: StreamOptions) -> None:
        self.timeout_s = options.timeout_s
        self._pending: PendingReplies[asyncio.Future[Any]] = PendingReplies(
            asyncio.get_running_loop().create_future, _settle, options
        )
        self._outbox: asyncio.Queue[pb.DecodeRequest] = asyncio.Queue(OUTBOX)
        self._call = decode(self._requests(), metadata=options.metadata)
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        self._pending.end("closed")
        self._call.cancel()
        self._reader.cancel()
        await asyncio.wait((self._reader,))

    async def _reply(self, rpc: Rpc[R], request: Any) -> R:
        message, mailbox = self._pending.write(rpc, request)
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._outbox.put(message)
                reply = await mailbox
        except TimeoutError:
            raise _too_late(self.timeout_s) from None
        finally:
            self._pending.forget(message)
        return self._pending.open(rpc, reply)

    async def _requests(self) -> AsyncIterator[pb.DecodeRequest]:
        while True:
            yield await self._outbox.get()

    async def _read(self) -> None:
        try:
            async for response in self._call:
                self._pending.deliver(response)
        except grpc.RpcError as failure:
            self._pending.end(failure)
        else:
            self._pending.end("the server closed it")
        finally:
            self._pending.end("closed")  # if there was no earlier reason
            while self._outbox.full():  # wakes callers that wait for room, and fail
                self._outbox.get_nowait()
                await asyncio.sleep(0)


def _settle(mailbox: asyncio.Future[Any], reply: Any) -> None:
    if not mailbox.done():  # it may have timed out
        mailbox.set_result(reply)


def _too_late(timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"no answer within {timeout_s:g} s")
