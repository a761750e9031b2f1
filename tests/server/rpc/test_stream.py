"""The Decode stream: replies by id, errors by message, bounds, deadlines and ends."""

import asyncio
from itertools import repeat
from typing import Any

import grpc
import pytest

from logitsieve.api.errors import InternalError
from logitsieve.server.metrics import Metrics
from logitsieve.server.rpc.stream import IN_FLIGHT, DecodeStreams
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.conftest import Serve
from tests.server.materials import Gate
from tests.server.messages import (
    FIELDS,
    GOOD,
    LARGE,
    LARGE_REQUEST,
    RESPONSES,
    Code,
    RawStream,
    asked,
    changed,
)
from tests.server.running import Running, requests_total
from tests.server.test_app import value
from tests.synthetic import make_hidden
from tools.fuzz.services import Context


def timeless(response: Any) -> Any:
    response.answer.ClearField("queue_ns")
    response.answer.ClearField("compute_ns")
    return response


def test_many_messages_of_every_kind_are_matched_by_id(server: Running) -> None:
    expected = {
        rpc: timeless(kind.FromString(server.raw(f"Decoder/{rpc}", GOOD[rpc].SerializeToString())))
        for rpc, kind in RESPONSES.items()
    }
    ids = {(1 << 64) - number: rpc for number in range(1, 101) for rpc in [list(GOOD)[number % 4]]}
    streams, empty = [RawStream(server.channel) for _ in range(3)], RawStream(server.channel)
    empty.half_close()
    assert empty.rest() == []
    for stream in streams:
        stream.send(*(asked(rpc, request_id) for request_id, rpc in ids.items()))
        stream.half_close()
    for stream in streams:
        replies = {reply.id: reply for reply in stream.rest()}
        assert replies.keys() == ids.keys()
        for request_id, rpc in ids.items():
            assert timeless(getattr(replies[request_id], FIELDS[rpc])) == expected[rpc]
        assert stream.call.code() is Code.OK


@pytest.mark.parametrize(
    ("message", "request_id", "field"),
    [
        (asked("TopK", 9, changed("TopK", model_spec=pb.ModelSpec(model="nothing"))), 9, "model"),
        (b"\xff\xff\xff", 0, "request"),
        (b"", 0, "request"),
        (pb.DecodeRequest(id=9), 9, "request"),
        (b"\x08\x09\x7a\x00", 9, "request"),  # a kind of request that is not known
        (asked("TopK", 9, pb.TopKRequest()), 9, "model"),
        (asked("TopK", 9, changed("TopK", k=0)), 9, "k"),
        (asked("Sample", 9, changed("Sample", seeds=None)), 9, "seeds"),
        (asked("Score", 9, changed("Score", token_ids=None)), 9, "token_ids"),
        (asked("BeamStep", 9, changed("BeamStep", beams_out=0)), 9, "beams_out"),
    ],
)
def test_a_bad_message_answers_its_own_id_and_the_stream_lives_on(
    server: Running, message: Any, request_id: int, field: str
) -> None:
    stream = RawStream(server.channel)
    stream.send(asked("TopK", 1), message, asked("TopK", 2))
    stream.half_close()
    replies = {reply.id: reply for reply in stream.rest()}
    assert replies.keys() == {1, request_id, 2}
    error = replies[request_id].error
    code = Code.NOT_FOUND if "nothing" in str(message) else Code.INVALID_ARGUMENT
    assert (error.code, error.field) == (code.value[0], field)
    assert replies[1].WhichOneof("reply") == replies[2].WhichOneof("reply") == "top_k"


def test_a_late_message_is_never_computed(tight: Running, gate: Gate) -> None:
    stream = RawStream(tight.channel)
    gate.shut()
    stream.send(asked("TopK", 1, LARGE_REQUEST, timeout_ms=60_000))
    gate.wait_entered()
    stream.send(asked("TopK", 2, LARGE_REQUEST, timeout_ms=1))
    assert stream.ask(pb.DecodeRequest(id=3)).id == 3  # so 2 has been taken
    with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
        RawStream(tight.channel, timeout=0.05).receive()  # which takes longer than that 1 ms
    gate.open()
    replies = {reply.id: reply for reply in (stream.receive(), stream.receive())}
    assert replies[1].WhichOneof("reply") == "top_k"
    assert replies[2].error.code == Code.DEADLINE_EXCEEDED.value[0]
    assert gate.computed == 1


def test_a_stream_has_a_bounded_number_of_messages_in_flight(serve: Serve, gate: Gate) -> None:
    with serve(gate, max_in_flight=IN_FLIGHT) as run:
        gate.shut()
        stream = RawStream(run.channel)
        stream.send(*(asked("TopK", number, LARGE_REQUEST) for number in range(5 * IN_FLIGHT)))
        gate.wait_entered()
        gate.open()
        stream.half_close()
        # One more in flight would have been refused: Overloaded.
        assert {reply.WhichOneof("reply") for reply in stream.rest()} == {"top_k"}


@pytest.mark.parametrize("vanishes", [False, True])
def test_abandoned_messages_are_not_computed(tight: Running, gate: Gate, vanishes: bool) -> None:
    cancelled = requests_total("TopK", "demo", "CANCELLED", "1")
    gate.shut()
    with grpc.insecure_channel(tight.address) as channel:
        stream = RawStream(channel)
        stream.send(asked("TopK", 1, LARGE_REQUEST))
        gate.wait_entered()
        stream.send(asked("TopK", 2, LARGE_REQUEST), pb.DecodeRequest(id=3))
        assert stream.receive().id == 3
        if vanishes:
            channel.close()
        else:
            stream.call.cancel()
        while value(tight, cancelled) != 2:
            pass
    stream.half_close()
    gate.open()
    assert tight.client.topk(LARGE, 3, model="demo").ids.shape == (64, 3)
    assert gate.computed == 2  # the one under way, and the last


def test_messages_are_counted_as_calls_are(server: Running) -> None:
    def counts() -> list[float]:
        return [
            value(server, requests_total(rpc, model, code, "1" if model == "demo" else ""))
            for code, model, rpc in (
                ("OK", "demo", "Score"),
                ("INVALID_ARGUMENT", "demo", "Score"),
                ("INVALID_ARGUMENT", "unknown", "Decode"),
            )
        ]

    before = counts()
    stream = RawStream(server.channel)
    stream.send(asked("Score", 1), asked("Score", 2, changed("Score", token_ids=None)), b"\xff")
    stream.half_close()
    assert len(stream.rest()) == 3
    assert [b - a for a, b in zip(before, counts(), strict=True)] == [1, 1, 1]


class StuckContext(Context):
    """A client that sends without end and reads nothing."""

    def __init__(self) -> None:
        super().__init__(repeat(b"\xff"))
        self.taken = 0
        self.reads = asyncio.Event()

    async def read(self) -> Any:
        self.taken += 1
        return await super().read()

    async def write(self, message: bytes) -> None:
        await self.reads.wait()
        await super().write(message)


async def never(*arguments: Any) -> bytes:
    raise AssertionError("no message here can be computed")


async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    context = StuckContext()
    decode: Any = DecodeStreams(never, Metrics(), 1).decode
    stream = asyncio.create_task(decode(None, context))
    for _ in range(10 * IN_FLIGHT):  # more turns of the loop than it could use
        await asyncio.sleep(0)
    assert (context.taken, context.written) == (IN_FLIGHT, [])
    context.reads.set()
    await asyncio.sleep(0)
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream


async def test_a_reply_that_cannot_be_written_ends_the_stream() -> None:
    class GoneContext(StuckContext):
        async def write(self, message: bytes) -> None:
            raise grpc.aio.InternalError("the connection is closed")

    decode: Any = DecodeStreams(never, Metrics(), 1).decode
    stream = asyncio.create_task(decode(None, GoneContext()))
    with pytest.raises(asyncio.CancelledError):
        await stream


def test_defects_are_incidents_and_the_server_and_its_stream_live_on(
    tight: Running, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.failure = ZeroDivisionError("a secret of the server")
    stream = RawStream(tight.channel)
    error = stream.ask(asked("TopK", 1, LARGE_REQUEST)).error
    assert error.code == Code.INTERNAL.value[0]
    with pytest.raises(InternalError) as caught:
        tight.client.topk(LARGE, 3, model="demo")
    for incident, said in (
        (error.incident, error.message),
        (caught.value.incident, str(caught.value)),
    ):
        assert incident in caplog.text
        assert "secret" not in said
    gate.failure = None
    assert tight.client.topk(LARGE, 3, model="demo").ids.shape == (64, 3)
    small = changed("TopK", hidden_states=put(pb.Tensor(), make_hidden(1)))
    assert stream.ask(asked("TopK", 2, small)).top_k.ids.rows == 1
