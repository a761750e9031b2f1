"""Connections that are ended because of their age, and idle ones that are not, over real ports."""

import socket
import struct
from contextlib import suppress
from queue import SimpleQueue

import grpc
import pytest

from logitsieve.server import ServeConfig
from logitsieve.server.rpc import ports
from tests.server.conftest import Serve
from tests.server.messages import Code, RawStream, assert_alive
from tests.server.running import WAIT_S, Running
from tools.chaos.hostile import PREFACE, SETTINGS, frame

OPEN = (
    "logitsieve.v1.Decoder/TopK",
    "logitsieve.v1.Decoder/Decode",
    "logitsieve.v1.Models/List",
    "inference.GRPCInferenceService/ServerLive",
    "grpc.health.v1.Health/Check",
)
READY, IDLE = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE


def test_an_old_connection_is_ended_if_asked_and_calls_make_another(serve: Serve) -> None:
    assert ports.ages(ServeConfig()) == []
    config = ServeConfig(max_connection_age_s=0.0001, max_connection_age_grace_s=0)
    assert [value for _, value in ports.ages(config)] == [1, 0]
    with serve(max_connection_age_s=0.1) as run:
        states: SimpleQueue[grpc.ChannelConnectivity] = SimpleQueue()
        run.channel.subscribe(states.put, try_to_connect=True)
        for _ in range(3):
            while states.get(timeout=WAIT_S) is not READY:
                pass
            while states.get(timeout=WAIT_S) is not IDLE:
                pass
            assert_alive(run)


def test_a_stream_on_it_has_the_grace_to_finish(serve: Serve) -> None:
    with serve(max_connection_age_s=0.1, max_connection_age_grace_s=0.5) as run:
        stream = RawStream(run.channel)
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            stream.receive()
        stream.half_close()
        assert run.client.models()


@pytest.mark.parametrize("method", OPEN)
def test_no_message_is_inflated(server: Running, method: str) -> None:
    call = server.channel.unary_unary(f"/{method}")
    with pytest.raises(grpc.RpcError, match="gzip") as caught:
        call(bytes(1 << 20), timeout=WAIT_S, compression=grpc.Compression.Gzip)
    assert caught.value.code() is Code.UNIMPLEMENTED


def test_an_idle_connection_may_be_pinged(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as clients behind a NAT or a balancer do; gRPC's default ends it at the fourth."""
    monkeypatch.setattr(ports, "PINGS_MS", ports.PINGS_MS // 16)
    ping, goaway = 6, 7
    with serve() as run, socket.create_connection(("127.0.0.1", run.server.port), 0.6) as peer:
        peer.sendall(PREFACE + frame(SETTINGS, 0, 0))
        kinds: list[int] = []
        for _ in range(5):
            peer.sendall(frame(ping, 0, 0, bytes(8)))
            kinds += frames_until_silent(peer)
    assert kinds.count(ping) >= 5
    assert goaway not in kinds


def frames_until_silent(connection: socket.socket) -> list[int]:
    """The kinds of the frames that come before a time-out, or the end."""
    kinds = []
    with connection.makefile("rb") as came, suppress(TimeoutError):
        while head := came.read(9):
            high, low, kind = struct.unpack(">BHB", head[:4])
            came.read(high << 16 | low)
            kinds.append(kind)
    return kinds
