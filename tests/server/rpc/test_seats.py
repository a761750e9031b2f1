"""Places for streams: who is refused, and who gives way."""

import asyncio

import grpc
import pytest

from logitsieve.api.errors import Overloaded
from logitsieve.server.rpc.seats import Seats
from tests.server.conftest import Serve
from tests.server.messages import RawStream, asked

OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]


class Room:
    def __init__(self, most: int) -> None:
        self._seats = Seats("streams", most)
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def sit(self, name: str, peer: str, busy: int = 0) -> None:
        """Take a place and keep it; Overloaded if there is none."""
        seated = asyncio.Event()

        async def stay() -> None:
            with self._seats.taken(peer) as seat:
                seat.busy = busy
                seated.set()
                await asyncio.get_running_loop().create_future()

        task = self.tasks[name] = asyncio.create_task(stay())
        waits = asyncio.create_task(seated.wait())
        await asyncio.wait((task, waits), return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        if task.done():
            task.result()
        await asyncio.sleep(0)

    @property
    def gone(self) -> list[str]:
        return [name for name, task in self.tasks.items() if task.done()]


async def test_the_quietest_of_who_has_most_gives_way_to_who_has_fewer() -> None:
    room = Room(5)
    await room.sit("mine", "ipv4:10.0.0.1:1")
    for number, busy in enumerate((1, 0, 0)):
        await room.sit(f"theirs {number}", "ipv4:10.0.0.2:1", busy)
    await room.sit("theirs 3", "ipv4:10.0.0.2:2")
    await room.sit("new", "ipv4:10.0.0.3:1")
    assert room.gone == ["theirs 1"]
    with pytest.raises(Overloaded, match="gave way to another client's: 5 streams"):
        room.tasks["theirs 1"].result()
    await room.sit("mine too", "ipv4:10.0.0.1:2")
    assert room.gone == ["theirs 1", "theirs 2"]
    with pytest.raises(Overloaded, match="5 streams are open, the most allowed"):
        await room.sit("yet another", "ipv4:10.0.0.1:1")  # would have no fewer
    for task in room.tasks.values():
        task.cancel()
    await asyncio.gather(*room.tasks.values(), return_exceptions=True)


async def test_a_connection_leaves_places_to_others_of_its_address() -> None:
    room = Room(4)
    for number in range(4):
        await room.sit(f"{number}", "ipv4:10.0.0.1:1")
    await room.sit("new", "ipv4:10.0.0.1:2")
    await room.sit("newer", "ipv4:10.0.0.1:2")
    assert room.gone == ["0", "1"]
    for task in room.tasks.values():
        task.cancel()
    await asyncio.gather(*room.tasks.values(), return_exceptions=True)


async def test_a_cancelled_stream_stays_cancelled() -> None:
    room = Room(1)
    await room.sit("one", "ipv4:10.0.0.1:1")
    room.tasks["one"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await room.tasks["one"]
    await room.sit("next", "ipv4:10.0.0.1:1")
    room.tasks["next"].cancel()


def test_silent_streams_of_a_connection_give_way_over_a_real_port(serve: Serve) -> None:
    with serve(max_streams=4) as run, grpc.insecure_channel(run.address, OPTIONS) as other:
        silent = [RawStream(run.channel) for _ in range(4)]
        for stream in silent:
            assert stream.ask(asked("TopK", 1)).id == 1
        late = RawStream(other)
        assert late.ask(asked("TopK", 1)).id == 1
        with pytest.raises(grpc.RpcError, match="gave way") as caught:
            silent[0].receive()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert silent[1].ask(asked("TopK", 2)).id == 2
        page = run.server.metrics.text().decode()
        assert 'logitsieve_requests_rejected_total{reason="streams"} 1.0' in page


def test_streams_beyond_the_most_are_refused(serve: Serve) -> None:
    with serve(max_streams=2) as run:
        streams = [RawStream(run.channel) for _ in range(2)]
        for stream in streams:
            assert stream.ask(asked("TopK", 1)).id == 1
        with pytest.raises(grpc.RpcError, match="2 streams are open") as caught:
            RawStream(run.channel).ask(asked("TopK", 1))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        streams[0].half_close()
        assert streams[0].rest() == []
        assert RawStream(run.channel).ask(asked("TopK", 1)).id == 1
