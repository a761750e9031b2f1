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
        self._server_status[""] = HealthCheckResponse.NOT_SERVING
        self._changed = asyncio.Event()
        self._final = False

    async def Watch(self, request: Any, context: Any) -> None:
        """Stream the state of a service, its last one included."""
        last = None
        while True:
            changed = self._changed
            state = self._server_status.get(request.service, HealthCheckResponse.SERVICE_UNKNOWN)
            if state != last:
                await context.write(HealthCheckResponse(status=state))
                last = state
            elif self._final:
                return
            else:
                await changed.wait()

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
        self._announce()
        return states[""]

    async def drain(self) -> None:
        """NOT_SERVING for good, everywhere."""
        await self.enter_graceful_shutdown()
        self._final = True
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
