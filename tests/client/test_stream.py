"""The clients' side of a Decode stream, against a server that follows a script."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from inspect import isawaitable
from threading import Barrier, Event
from time import sleep
from typing import Any, Self

import grpc
import numpy as np
import pytest

from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import (
    DeadlineExceeded,
    InvalidRequest,
    RequestTooLarge,
    Unavailable,
    Unimplemented,
)
from logitsieve.client import AsyncDecoderClient, AsyncDecodeStream, DecoderClient
from logitsieve.client.errors import UNSENT
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.client.answering import answering
from tests.refusals import refused
from tests.server.running import Loop

WAIT_S = 60.0
ROW = np.zeros((1, 2), np.float32)
Script = Callable[[Iterator[pb.DecodeRequest], Any], Iterator[pb.DecodeResponse]]


def answered(request: pb.DecodeRequest) -> pb.DecodeResponse:
    """A reply whose only id is the k that was asked for."""
    flag, scanned = (put(pb.Tensor(), np.zeros(1, kind)) for kind in (np.bool_, np.int32))
    answer = pb.Answer(proven=flag, fallback=flag, scanned=scanned)
    ids = put(pb.Tensor(), np.array([[request.top_k.k]], np.int32))
    logits = put(pb.Tensor(), np.zeros((1, 1), np.float32))
    top_k = pb.TopKResponse(ids=ids, logits=logits, answer=answer)
    return pb.DecodeResponse(id=request.id, top_k=top_k)


def serving(script: Script | None) -> AbstractContextManager[str]:
    """The address of a server that follows `script`, or has no streams."""
    if script is None:
        return answering("logitsieve.v1.Decoder")
    method = grpc.stream_stream_rpc_method_handler(
        script, pb.DecodeRequest.FromString, pb.DecodeResponse.SerializeToString
    )
    return answering("logitsieve.v1.Decoder", Decode=method)


class Waiting:
    """An awaited client, or a stream of it: each call is waited for, in the loop of a thread."""

    def __init__(self, loop: Loop, of: Any) -> None:
        vars(self).update(loop=loop, of=of)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.of, name)

        async def called(*arguments: Any, **options: Any) -> Any:
            found = value(*arguments, **options)
            found = await found if isawaitable(found) else found
            return Waiting(self.loop, found) if isinstance(found, AsyncDecodeStream) else found

        return lambda *arguments, **options: self.loop.run(called(*arguments, **options))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.of, name, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Scripted = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(params=[DecoderClient, AsyncDecoderClient])
def scripted(request: pytest.FixtureRequest) -> Scripted:
    """A client, or an awaited one, of a server that follows a script."""

    async def made(*arguments: Any, **options: Any) -> AsyncDecoderClient:
        return AsyncDecoderClient(*arguments, **options)

    async def ended() -> None:
        """What `asyncio.run` does with tasks that gRPC leaves."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def opened(script: Script | None, **options: Any) -> Iterator[Any]:
        with serving(script) as address:
            options = {"timeout_s": WAIT_S, **options}
            if request.param is DecoderClient:
                with DecoderClient(address, **options) as client:
                    yield client
                return
            with closing(Loop()) as loop:
                with Waiting(loop, loop.run(made(address, **options))) as waiting:
                    yield waiting
                loop.run(ended())

    return opened


def in_order(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[pb.DecodeResponse]:
    yield from map(answered, requests)


def asked_for(decoder: Decoder, k: int) -> int:
    return int(decoder.topk(ROW, k).ids[0, 0])


def test_threads_get_their_own_answers_in_whatever_order_they_come(scripted: Scripted) -> None:
    def backwards(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        batch = []
        for request in requests:
            batch.append(request)
            if len(batch) == 8:
                yield from map(answered, reversed(batch))
                batch.clear()

    with scripted(backwards) as client, client.stream() as stream, ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            assert list(pool.map(lambda k: asked_for(stream, k), range(1, 9))) == [*range(1, 9)]


def test_every_message_has_an_id_of_its_own_and_the_timeout(scripted: Scripted) -> None:
    seen: list[pb.DecodeRequest] = []

    def noting(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        for request in requests:
            seen.append(request)
            yield answered(request)

    with scripted(noting) as client, client.stream(timeout_s=2.5) as stream:
        for k in range(1, 6):
            stream.topk(ROW, k)
    assert len({request.id for request in seen}) == 5
    assert {request.timeout_ms for request in seen} == {2500}


def test_an_answer_that_does_not_come(scripted: Scripted) -> None:
    late = Event()

    def skipping(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        first = next(requests)
        late.wait(WAIT_S)
        yield answered(first)
        yield from map(answered, requests)

    with scripted(skipping) as client, client.stream(timeout_s=0.05) as stream:
        with pytest.raises(DeadlineExceeded, match=r"0\.05 s"):
            stream.topk(ROW, 1)
        late.set()
        stream.timeout_s = WAIT_S
        assert asked_for(stream, 2) == 2  # and not the late answer


def test_one_messages_error(scripted: Scripted) -> None:
    error = pb.Error(code=3, field="k", message="k: got 0, allowed: 1 to 5")

    def failing(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        yield pb.DecodeResponse(id=next(requests).id, error=error)
        yield from map(answered, requests)

    with scripted(failing) as client, client.stream() as stream:
        with refused("k", error.message):
            stream.topk(ROW, 1)
        assert asked_for(stream, 2) == 2


def test_a_stream_that_breaks_fails_who_waits_and_who_comes_later(scripted: Scripted) -> None:
    def breaking(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        yield answered(next(requests))
        next(requests)
        next(requests)
        context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")

    with scripted(breaking) as client, client.stream() as stream, ThreadPoolExecutor(2) as pool:
        stream.topk(ROW, 1)
        for waiting in [pool.submit(stream.topk, ROW, 1) for _ in range(2)]:
            assert isinstance(waiting.exception(WAIT_S), Unavailable)
        with pytest.raises(Unavailable, match="the server is stopping"):
            stream.topk(ROW, 1)


def test_a_stream_ended_without_a_word(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers that still wait for room hear of it, too."""
    monkeypatch.setattr("logitsieve.client.stream.OUTBOX", 1)
    wide, go = np.zeros((1, 1 << 20), np.float32), Event()  # more than a server takes unread

    def ending(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        go.wait(WAIT_S)
        return iter(())

    with scripted(ending) as client, client.stream() as stream, ThreadPoolExecutor(9) as pool:
        calls = [pool.submit(stream.topk, wide, 1) for _ in range(9)]
        while len(vars(stream).get("of", stream)._pending._waiting) < len(calls):
            sleep(0.01)
        go.set()
        calls.append(pool.submit(stream.topk, ROW, 1))
        assert all(isinstance(call.exception(WAIT_S / 4), Unavailable) for call in calls)


def test_a_stream_that_is_refused_is_not_tried_again(scripted: Scripted) -> None:
    """After a retry gRPC may keep a cancelled stream for ever, and closing would wait for it."""
    tries = []

    def refusing(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        tries.append(context)
        context.abort(grpc.StatusCode.UNAVAILABLE, "stopping")
        yield

    with scripted(refusing) as client, client.stream() as stream, pytest.raises(Unavailable):
        stream.topk(ROW, 1)
    assert len(tries) == 1


def test_no_server_and_one_without_streams(scripted: Scripted) -> None:
    with DecoderClient("127.0.0.1:1", timeout_s=WAIT_S) as client, client.stream() as stream:
        for _ in range(2):
            with pytest.raises(Unavailable):
                stream.topk(ROW, 1)
    without = pytest.raises((Unimplemented, Unavailable), match=f"Method not found|{UNSENT}")
    with scripted(None) as client, client.stream() as stream, without:
        stream.topk(ROW, 1)


def test_a_message_that_is_too_large_leaves_the_stream_alone(scripted: Scripted) -> None:
    with scripted(in_order, max_message_bytes=1000) as client, client.stream() as stream:
        with pytest.raises(RequestTooLarge, match="1000 bytes"):
            stream.topk(np.zeros((1, 300), np.float32), 1)
        assert asked_for(stream, 2) == 2


@pytest.mark.parametrize("by_client", [False, True])
def test_closing_fails_who_waits_and_may_be_done_twice(scripted: Scripted, by_client: bool) -> None:
    taken = Barrier(2)

    def silent(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        next(requests)
        taken.wait(WAIT_S)
        yield from map(answered, requests)

    with scripted(silent) as client, ThreadPoolExecutor(1) as pool:
        stream = client.stream()
        waiting = pool.submit(stream.topk, ROW, 1)
        taken.wait(WAIT_S)
        if by_client:
            client.close()
        stream.close()
        stream.close()
        assert isinstance(waiting.exception(WAIT_S), Unavailable)
        with pytest.raises(Unavailable, match="closed"):
            stream.topk(ROW, 1)


def test_more_callers_than_may_wait_to_be_sent(scripted: Scripted) -> None:
    go = Event()

    def slow(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        go.wait(WAIT_S)
        yield from map(answered, requests)

    with scripted(slow) as client, client.stream() as stream, ThreadPoolExecutor(200) as pool:
        answers = [pool.submit(asked_for, stream, k) for k in range(1, 201)]
        go.set()
        assert [answer.result(WAIT_S) for answer in answers] == list(range(1, 201))


@pytest.mark.parametrize("timeout_s", [0, -1, True, float("nan"), 3601])
def test_a_timeout_is_as_for_the_client(scripted: Scripted, timeout_s: Any) -> None:
    with scripted(in_order) as client, pytest.raises(InvalidRequest):
        client.stream(timeout_s=timeout_s)


async def test_an_awaited_call_that_is_cancelled_leaves_the_stream_alone() -> None:
    taken = Event()

    def skipping(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        next(requests)
        taken.set()
        yield from map(answered, requests)

    with serving(skipping) as address:
        client = AsyncDecoderClient(address, timeout_s=WAIT_S)
        async with client, client.stream() as stream:
            waiting = asyncio.ensure_future(stream.topk(ROW, 1))
            assert await asyncio.to_thread(taken.wait, WAIT_S)
            waiting.cancel()
            assert (await stream.topk(ROW, 2)).ids.tolist() == [[2]]
