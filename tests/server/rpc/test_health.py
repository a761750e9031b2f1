"""The states that health checks see, by a watch in this process."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from logitsieve.server.models.routes import Routes
from logitsieve.server.rpc.health import Health

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


async def test_one_loaded_model_is_enough() -> None:
    health = Health()
    assert health.publish(routes(lm=False, other=True))
    for service, status in (("", SERVING), ("lm", NOT_SERVING), ("other@1", SERVING)):
        request = HealthCheckRequest(service=service)
        assert (await health.Check(request, None)).status == status
