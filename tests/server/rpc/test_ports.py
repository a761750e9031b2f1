"""Connections that are ended because of their age, over real ports."""

import asyncio
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from logitsieve.server import ServeConfig
from logitsieve.server.models.routes import Routes
from logitsieve.server.rpc.ports import Health, ages
from tests.server.conftest import Serve
from tests.server.messages import Code, RawStream, assert_alive
from tests.server.running import WAIT_S, Running

OPEN = (
    "logitsieve.v1.Decoder/TopK",
    "logitsieve.v1.Decoder/Decode",
    "logitsieve.v1.Models/List",
    "inference.GRPCInferenceService/ServerLive",
    "grpc.health.v1.Health/Check",
)
READY, IDLE = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE


def test_an_old_connection_is_ended_if_asked_and_calls_make_another(serve: Serve) -> None:
    assert ages(ServeConfig()) == []
    config = ServeConfig(connection_age_s=0.0001, connection_grace_s=0)
    assert [value for _, value in ages(config)] == [1, 0]
    with serve(connection_age_s=0.1) as run:
        states: SimpleQueue[grpc.ChannelConnectivity] = SimpleQueue()
        run.channel.subscribe(states.put, try_to_connect=True)
        for _ in range(3):
            while states.get(timeout=WAIT_S) is not READY:
                pass
            while states.get(timeout=WAIT_S) is not IDLE:
                pass
            assert_alive(run)


def test_a_stream_on_it_has_the_grace_to_finish(serve: Serve) -> None:
    with serve(connection_age_s=0.1, connection_grace_s=0.5) as run:
        stream = RawStream(run.channel)
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            stream.receive()
        stream.half_close()
        assert run.client.models()


@pytest.mark.parametrize("method", OPEN)
def test_no_message_is_inflated(server: Running, method: str) -> None:
    call = server.channel.unary_unary(f"/{method}")
    with pytest.raises(grpc.RpcError, match="gzip") as caught:
        call(bytes(64 << 20), timeout=WAIT_S, compression=grpc.Compression.Gzip)
    assert caught.value.code() is Code.UNIMPLEMENTED


SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN


def routes(**loaded: bool) -> Routes:
    """One version of each model, loaded or not."""
    versions = {
        (name, 1): SimpleNamespace(label=f"{name}@1", served=object() if ready else None)
        for name, ready in loaded.items()
    }
    made = SimpleNamespace(by_key=versions, names=list(loaded), get=lambda name: versions[name, 1])
    return cast(Routes, made)


class Watcher:
    def __init__(self) -> None:
        self.written: asyncio.Queue[int] = asyncio.Queue()

    async def write(self, response: HealthCheckResponse) -> None:
        await self.written.put(response.status)


async def watch(health: Health, service: str) -> tuple[Watcher, asyncio.Task[Any]]:
    watcher = Watcher()
    watching = health.Watch(HealthCheckRequest(service=service), watcher)
    return watcher, asyncio.create_task(watching)


async def test_a_watch_sees_every_state_and_ends_with_the_server() -> None:
    health = Health()
    server, whole = await watch(health, "")
    model, one = await watch(health, "lm@1")
    assert await server.written.get() == NOT_SERVING
    assert await model.written.get() == UNKNOWN
    assert health.publish(routes(lm=True))
    assert await server.written.get() == await model.written.get() == SERVING
    assert not health.publish(routes(lm=False))
    assert await server.written.get() == await model.written.get() == NOT_SERVING
    assert health.publish(routes(other=True))
    assert await model.written.get() == UNKNOWN
    await health.drain()
    assert health.publish(routes(lm=True))  # changes nothing any more
    await asyncio.gather(whole, one)
    assert server.written.get_nowait() == SERVING
    assert server.written.get_nowait() == NOT_SERVING
