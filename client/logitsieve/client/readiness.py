"""Health checks until a server answers for a model."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import grpc

from logitsieve.api.errors import DeadlineExceeded, LogitsieveError

POLL_S = 0.1
SERVING = b"\x08\x01"  # a HealthCheckResponse, without grpcio-health-checking
COMING = (  # or too busy for the check
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class Readiness:
    """Checks on a channel for `timeout_s` seconds."""

    def __init__(
        self,
        channel: Any,
        address: str,
        timeout_s: float,
        to_exception: Callable[[grpc.RpcError], LogitsieveError],
    ) -> None:
        self._check = channel.unary_unary("/grpc.health.v1.Health/Check")
        self._address, self._timeout_s, self._to_exception = address, timeout_s, to_exception
        self._until, self._why = monotonic() + timeout_s, "it is silent"

    def ask(self) -> Any:
        """Return the call of a check."""
        return self._check(b"", timeout=max(0.0, self._until - monotonic()))

    def settled(self, reply: bytes | grpc.RpcError) -> bool:
        """Return True if the server serves, False to ask again; raise to give up."""
        if reply == SERVING:
            return True
        if not isinstance(reply, grpc.RpcError):
            self._why = "no model answers"
        elif reply.code() not in COMING:
            raise self._to_exception(reply) from reply
        elif reply.code() != grpc.StatusCode.DEADLINE_EXCEEDED:  # of this check
            self._why = str(self._to_exception(reply))
        if monotonic() < self._until:
            return False
        message = f"{self._address} is not ready within {self._timeout_s:g} s: {self._why}"
        raise DeadlineExceeded(message)
