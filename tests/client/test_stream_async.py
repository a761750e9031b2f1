"""The awaited client of a Decode stream, against a server that follows a script."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from threading import Event
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import DeadlineExceeded, InvalidRequest, RequestTooLarge, Unavailable
from logitsieve.client import AsyncDecoderClient, AsyncDecodeStream
from logitsieve.v1 import decoder_pb2 as pb
from tests.client.test_stream import ROW, WAIT_S, Script, answered, breaking, in_order, scripted

Play = Callable[[AsyncDecoderClient], Coroutine[Any, Any, None]]


def played(script: Script, play: Play, **options: Any) -> None:
    """`play` with a client of a server that follows `script`."""

    async def scene(address: str) -> None:
        async with AsyncDecoderClient(address, **{"timeout_s": WAIT_S, **options}) as client:
            await play(client)

    with scripted(script) as client:
        asyncio.run(scene(client.address))


async def asked_for(decoder: AsyncDecodeStream, k: int) -> int:
    return int((await decoder.topk(ROW, k)).ids[0, 0])


def test_calls_get_their_own_answers_in_whatever_order_they_come() -> None:
    def backwards(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        batch = []
        for request in requests:
            batch.append(request)
            if len(batch) == 100:
                yield from map(answered, reversed(batch))
                batch.clear()

    async def play(client: AsyncDecoderClient) -> None:
        async with client.stream() as stream:
            for _ in range(3):
                answers = await asyncio.gather(*(asked_for(stream, k) for k in range(100)))
                assert answers == list(range(100))

    played(backwards, play)


def test_an_answer_that_does_not_come() -> None:
    late = Event()

    def skipping(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        first = next(requests)
        late.wait(WAIT_S)
        yield answered(first)
        yield from map(answered, requests)

    async def play(client: AsyncDecoderClient) -> None:
        async with client.stream(timeout_s=0.05) as stream:
            with pytest.raises(DeadlineExceeded, match=r"0\.05 s"):
                await stream.topk(ROW, 1)
            late.set()
            stream.timeout_s = WAIT_S
            assert await asked_for(stream, 2) == 2  # and not the late answer

    played(skipping, play)


def test_an_error_is_that_of_one_message() -> None:
    def failing(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        error = pb.Error(code=3, field="k", message="k: got 0, allowed: 1 to 5")
        yield pb.DecodeResponse(id=next(requests).id, error=error)
        yield from map(answered, requests)

    async def play(client: AsyncDecoderClient) -> None:
        async with client.stream() as stream:
            with pytest.raises(InvalidRequest, match="k: got 0"):
                await stream.topk(ROW, 1)
            assert await asked_for(stream, 2) == 2

    played(failing, play)


def test_a_stream_that_breaks_fails_who_waits_and_who_comes_later() -> None:
    async def play(client: AsyncDecoderClient) -> None:
        async with client.stream() as stream:
            await stream.topk(ROW, 1)
            both = [stream.topk(ROW, 1) for _ in range(2)]
            for failure in await asyncio.gather(*both, return_exceptions=True):
                assert isinstance(failure, Unavailable)
            with pytest.raises(Unavailable, match="the server is stopping"):
                await stream.topk(ROW, 1)

    played(breaking, play)


def test_a_server_that_ends_the_stream_without_a_word() -> None:
    def ending(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        next(requests)
        return
        yield

    async def play(client: AsyncDecoderClient) -> None:
        async with client.stream() as stream:
            for _ in range(2):
                with pytest.raises(Unavailable, match="the server closed it"):
                    await stream.topk(ROW, 1)

    played(ending, play)


def test_a_message_that_is_too_large_leaves_the_stream_alone() -> None:
    async def play(client: AsyncDecoderClient) -> None:
        async with client.stream() as stream:
            with pytest.raises(RequestTooLarge, match="1000 bytes"):
                await stream.topk(np.zeros((1, 300), np.float32), 1)
            assert await asked_for(stream, 2) == 2

    played(in_order, play, max_message_bytes=1000)


@pytest.mark.parametrize("by_client", [False, True])
def test_closing_fails_who_waits(by_client: bool) -> None:
    taken = Event()

    def silent(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        next(requests)
        taken.set()
        yield from map(answered, requests)

    async def play(client: AsyncDecoderClient) -> None:
        stream = client.stream()
        waiting = asyncio.ensure_future(stream.topk(ROW, 1))
        assert await asyncio.to_thread(taken.wait, WAIT_S)
        if by_client:
            await client.close()
        await stream.close()
        await stream.close()
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable, match="closed"):
            await stream.topk(ROW, 1)

    played(silent, play)


def test_a_call_that_is_cancelled_leaves_the_stream_alone() -> None:
    taken = Event()

    def skipping(requests: Iterator[pb.DecodeRequest], context: Any) -> Iterator[Any]:
        next(requests)
        taken.set()
        yield from map(answered, requests)

    async def play(client: AsyncDecoderClient) -> None:
        async with client.stream() as stream:
            waiting = asyncio.ensure_future(stream.topk(ROW, 1))
            assert await asyncio.to_thread(taken.wait, WAIT_S)
            waiting.cancel()
            assert await asked_for(stream, 2) == 2

    played(skipping, play)


@pytest.mark.parametrize("timeout_s", [0, -1, True, float("nan"), 3601])
def test_a_timeout_is_as_for_the_client(timeout_s: Any) -> None:
    async def play(client: AsyncDecoderClient) -> None:
        with pytest.raises(InvalidRequest):
            client.stream(timeout_s=timeout_s)

    played(in_order, play)
