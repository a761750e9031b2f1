"""gRPC reflection: what the services are, for tools such as grpcurl; off unless asked for."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, enable_server_reflection


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Tell of these services and of reflection itself."""
    enable_server_reflection((*services, SERVICE_NAME), server)
