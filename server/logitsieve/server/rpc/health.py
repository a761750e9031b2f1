"""grpc.health.v1: the whole server as "", each model by its name, each version as name@version."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc_health.v1.health import aio
from grpc_health.v1.health_pb2 import HealthCheckResponse

from logitsieve.server.models.routes import Routes


class Health(aio.HealthServicer):  # type: ignore[misc]  # the library is untyped
    """NOT_SERVING until `publish`; `drain` ends watches, which would hold up the exit."""

    def __init__(self) -> None:
        super().__init__()
        self._server_status: dict[str, int] = {"": HealthCheckResponse.NOT_SERVING}
        self._changed = asyncio.Event()
        self._final = False

    async def Watch(self, request: Any, context: Any) -> None:
        """Stream the states of a service, including its last one."""
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

    def publish(self, routes: Routes) -> bool:
        states = {v.label: v.served is not None for v in routes.by_key.values()}
        for name in routes.names:
            states[name] = routes.get(name).served is not None
        states[""] = any(states.values())
        if not self._final:
            # The base class's `set` removes no service, and does not wake our `Watch`.
            self._server_status = {
                service: HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
                for service, ready in states.items()
            }
            self._announce()
        return states[""]

    async def drain(self) -> None:
        await self.enter_graceful_shutdown()
        self._final = True
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
