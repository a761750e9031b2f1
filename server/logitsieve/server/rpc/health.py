"""grpc.health.v1 of the server, "", of each model by its name, of each version as name@version."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

from logitsieve.server.models.routes import Routes
from logitsieve.server.rpc.status import guarded


class Health(HealthServicer):  # type: ignore[misc]  # the library is untyped
    """NOT_SERVING until `publish`; `drain` ends watches, which the library's would not."""

    def __init__(self) -> None:
        self._states: dict[str, int] = {"": HealthCheckResponse.NOT_SERVING}
        self._changed = asyncio.Event()
        self._final = False

    @guarded
    async def Check(self, request: Any, context: Any) -> HealthCheckResponse:
        state = self._states.get(request.service)
        if state is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return HealthCheckResponse(status=state)

    @guarded
    async def Watch(self, request: Any, context: Any) -> None:
        """Stream the states of a service, including its last one."""
        last = None
        while True:
            changed = self._changed
            state = self._states.get(request.service, HealthCheckResponse.SERVICE_UNKNOWN)
            if state != last:
                await context.write(HealthCheckResponse(status=state))
                last = state
            elif self._final:
                return
            else:
                await changed.wait()

    def publish(self, routes: Routes) -> bool:
        states = {v.label: v.served is not None for v in routes.by_key.values()}
        states |= {name: routes.get(name).served is not None for name in routes.names}
        states[""] = any(states.values())
        if not self._final:
            self._announce(states)
        return states[""]

    async def drain(self) -> None:
        self._final = True
        self._announce(dict.fromkeys(self._states, False))

    def _announce(self, states: dict[str, bool]) -> None:
        self._states = {
            service: HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
            for service, ready in states.items()
        }
        self._changed.set()
        self._changed = asyncio.Event()
