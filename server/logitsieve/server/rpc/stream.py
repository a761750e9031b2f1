"""The RPC Decode: requests and replies of all RPCs on one stream, matched by id."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from time import perf_counter_ns
from typing import NamedTuple

import grpc

from logitsieve.api.errors import InvalidRequest, Overloaded, ServiceError, Unavailable
from logitsieve.server.logs import REQUEST_ID
from logitsieve.server.metrics import STREAMS, UNREAD, Call, Metrics
from logitsieve.server.rpc.codec import to_decode_response
from logitsieve.server.rpc.handlers import Context, failed, parse, peer_of, read_metadata
from logitsieve.server.rpc.intake import Held
from logitsieve.server.rpc.methods import METHODS, Method
from logitsieve.server.rpc.seats import Seat, Seats
from logitsieve.server.rpc.status import abort, guarded, to_status
from logitsieve.v1 import decoder_pb2 as pb

IN_FLIGHT = 16  # messages of a stream at a time, so that some are computed while others travel
RECHECK_S = 1.0

Answer = Callable[[Method, object, Call], Awaitable[bytes]]


class _Message(NamedTuple):
    data: bytes
    held: Held | None = None
    refused: Overloaded | Unavailable | None = None  # why it was not let in


def _without_request(message: bytes) -> bytes:
    try:
        return pb.DecodeRequest(id=parse(pb.DecodeRequest, message).id).SerializeToString()
    except InvalidRequest:
        return b""


class DecodeStreams:
    """The open streams, at most `most`.

    Once its API key is no longer valid, a stream ends at its next message or within `recheck_s`.
    """

    def __init__(
        self, answer: Answer, metrics: Metrics, most: int, recheck_s: float = RECHECK_S
    ) -> None:
        self._answer, self._metrics = answer, metrics
        self._seats, self._recheck_s = Seats("streams", most), recheck_s
        self._open: set[_Stream] = set()
        self._draining = False

    def drain(self) -> None:
        """Take no more messages. Streams end once those taken have their replies."""
        self._draining = True
        for stream in self._open:
            stream.end()

    @guarded
    async def decode(self, messages: AsyncIterator[bytes], context: Context) -> None:
        of_stream, trace, _ = read_metadata(context.invocation_metadata())
        if of_stream:
            context.set_trailing_metadata(((REQUEST_ID, of_stream),))
        try:
            with self._seats.taken(context.peer()) as seat:
                stream = _Stream(context, partial(self._reply, of_stream, trace), seat)
                self._open.add(stream)
                try:
                    if not self._draining:
                        await stream.run(self._recheck_s)
                finally:
                    self._open.discard(stream)
        except ServiceError as error:
            call = Call("Decode", request_id=of_stream, shed=STREAMS)
            await abort(failed(error, call, self._metrics), context, of_stream)
        if self._draining:
            await abort(to_status(Unavailable("the server is stopping")), context, of_stream)

    async def _reply(
        self, of_stream: str, trace: dict[str, str], message: _Message, context: Context
    ) -> bytes:
        size, left_s, peer = len(message.data), context.time_remaining(), peer_of(context)
        call = Call("Decode", size, left_s, request_id=of_stream, trace=trace, peer=peer)
        if message.held is not None:
            call.shrink = message.held.shrink
            call.arrived_ns -= message.held.waited_ns
        try:
            response = await self._respond(message, call)
        except BaseException as error:
            status = failed(error, call, self._metrics)
            return pb.DecodeResponse(id=call.id, error=status.error).SerializeToString()
        self._metrics.finish(call, "OK")
        return response

    async def _respond(self, message: _Message, call: Call) -> bytes:
        request = parse(pb.DecodeRequest, message.data)
        call.id = request.id
        if message.refused is not None:
            call.shed = UNREAD
            raise message.refused
        field = request.WhichOneof("request")
        if field is None:
            raise InvalidRequest("request", "nothing", ", ".join(METHODS))
        method = METHODS[field]
        call.rpc = method.rpc.name
        call.limit(request.timeout_ms / 1000)
        answer = self._answer(method, getattr(request, field), call)
        del request
        return to_decode_response(call.id, field, await answer)


class _Stream:
    """Workers that each take a message, and write its reply before they take the next.

    So a client that does not read its replies is not read, either.
    """

    def __init__(
        self, context: Context, reply: Callable[[_Message, Context], Awaitable[bytes]], seat: Seat
    ) -> None:
        self._context, self._reply, self._seat = context, reply, seat
        self._reading, self._writing = asyncio.Lock(), asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._handler: asyncio.Task[None] | None = None
        self._ended = False

    async def run(self, recheck_s: float) -> None:
        """Return when the last reply is written.

        CancelledError if the client goes away first, ServiceError if its key is no longer valid.
        """
        self._handler = asyncio.current_task()
        # If the first reply is cancelled, an abort would have to send it, and lose its status.
        await asyncio.gather(self._context.send_initial_metadata(()), return_exceptions=True)
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch(recheck_s))
                await asyncio.wait([tasks.create_task(self._work()) for _ in range(IN_FLIGHT)])
                watching.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _watch(self, recheck_s: float) -> None:
        while True:
            await asyncio.sleep(recheck_s)
            self._context.check_key()

    def end(self) -> None:
        self._ended = True
        if self._reader is not None:
            self._reader.cancel()

    async def _work(self) -> None:
        while (message := await self._next()) is not None:
            try:
                reply = await self._reply(message, self._context)
                async with self._writing:
                    if message.held is not None:
                        self._context.intake.reply(message.held)
                    await self._context.write(reply)
            except grpc.aio.BaseError:
                if self._handler is not None:
                    self._handler.cancel()
                return
            finally:
                if message.held is not None:
                    self._context.intake.leave(message.held)
                self._seat.busy -= 1
                self._seat.quiet_ns = perf_counter_ns()

    async def _next(self) -> _Message | None:
        async with self._reading:
            if self._ended:
                return None
            self._reader = reader = asyncio.current_task()
            try:
                message = await self._context.read()
            except asyncio.CancelledError:
                if not self._ended or reader is None:
                    raise
                reader.uncancel()  # `end` stops the reading only; other workers write their replies
                return None
            finally:
                self._reader = None
            self._context.check_key()
            if message is grpc.aio.EOF:
                self._ended = True
                return None
            self._seat.busy += 1
            message = bytes(message)
            try:
                held = await self._context.intake.enter(len(message), self._seat.peer)
            except (Overloaded, Unavailable) as error:
                return _Message(_without_request(message), refused=error)
            return _Message(message, held)
