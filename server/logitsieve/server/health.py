"""grpc.health.v1: the whole server as "", each model by its name, each version as name@version."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc_health.v1.health import aio
from grpc_health.v1.health_pb2 import HealthCheckResponse

from logitsieve.server.repository import Repository


class Health(aio.HealthServicer):  # type: ignore[misc]  # the library is untyped
    """NOT_SERVING until `serving`; `drain` ends watches too, which would hold up the exit."""

    def __init__(self) -> None:
        super().__init__()
        self._draining = asyncio.Event()
        self._server_status[""] = HealthCheckResponse.NOT_SERVING

    async def Watch(self, request: Any, context: Any) -> None:
        """Stream the state of a service until it changes for the last time."""
        watch = asyncio.ensure_future(super().Watch(request, context))
        drained = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait((watch, drained), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            drained.cancel()

    async def serving(self, repository: Repository) -> bool:
        """Publish what is loaded; whether that is anything."""
        versions = repository.versions()
        states = {version.label: version.served is not None for version in versions}
        for name in repository.names():
            states[name] = repository.get(name).served is not None
        states[""] = any(states.values())
        for service, ready in states.items():
            await self.set(
                service, HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
            )
        return states[""]

    async def drain(self) -> None:
        """NOT_SERVING for good, everywhere."""
        await self.enter_graceful_shutdown()
        self._draining.set()
