"""Health checks are short, watches are bounded, and both answer while no memory is left."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from logitsieve.api.errors import InvalidRequest, Overloaded
from logitsieve.server.rpc.health import MOST_BYTES, Health
from tests.server.conftest import Serve
from tests.server.running import SERVING, WAIT_S
from tools.fuzz.services import Context

CHECK = "/grpc.health.v1.Health/Check"
HALF_OPEN = ["/logitsieve.v1.Decoder/TopK", "/logitsieve.v1.Models/List", CHECK]
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]


class Watcher(Context):
    def __init__(self, peer: str) -> None:
        super().__init__()
        self._peer, self.told = peer, asyncio.Event()

    def peer(self) -> str:
        return self._peer

    async def write(self, message: bytes) -> None:
        await super().write(message)
        self.told.set()


async def test_watches_give_way() -> None:
    health = Health(most_watches=2)
    contexts = [Watcher(f"ipv4:10.0.0.{number}:1") for number in (7, 7, 8)]
    watches = []
    for context in contexts:
        watches.append(asyncio.create_task(health.watch(b"", context)))
        await asyncio.wait_for(context.told.wait(), WAIT_S)
    with pytest.raises(Overloaded, match="2 watches are open"):
        await watches[0]
    with pytest.raises(Overloaded, match="2 watches are open"):
        await health.watch(b"", Watcher("ipv4:10.0.0.7:2"))
    await health.drain()
    await asyncio.gather(*watches[1:])
    states = [HealthCheckResponse.FromString(message).status for message in contexts[2].written]
    assert states == [HealthCheckResponse.NOT_SERVING]


async def test_a_long_request_is_refused() -> None:
    message = HealthCheckRequest(service="a" * MOST_BYTES).SerializeToString()
    with pytest.raises(InvalidRequest, match=f"service: got {len(message)} bytes"):
        await Health().check(message, Context())


@pytest.mark.parametrize("method", HALF_OPEN)
def test_calls_without_a_message_keep_no_one_out(serve: Serve, method: str) -> None:
    """More of them than fit the memory, on one connection; another's calls are answered."""
    never = threading.Event()

    def silent() -> Iterator[bytes]:
        never.wait(WAIT_S)
        yield from ()

    with serve(request_memory_mib=64) as run, grpc.insecure_channel(run.address, OPTIONS) as other:
        calls: Any = [other.stream_unary(method).future(silent()) for _ in range(64)]
        grpc.channel_ready_future(other).result(WAIT_S)
        assert HealthStub(run.channel).Check(HealthCheckRequest(), timeout=WAIT_S).status == SERVING
        assert run.client.models()
        for call in calls:
            call.cancel()
        never.set()
