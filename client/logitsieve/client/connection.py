"""What clients of any service share: a channel, one timeout, our exceptions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Real
from types import TracebackType
from typing import Any, Self

import grpc

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.channel import Tls, open_channel, to_metadata
from logitsieve.client.errors import to_exception

MAX_TIMEOUT_S = 3600.0


class Closing(ABC):
    """What a `with` block closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Connection(Closing):
    """Blocking calls to `address`, which connects at the first; thread-safe.

    Each call, its retries included, takes at most `timeout_s` seconds, at most an hour.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        tls: Tls | None,
        token: str,
        options: list[tuple[str, Any]],
    ) -> None:
        self.address = address
        self.timeout_s = seconds(timeout_s)
        self._metadata = to_metadata(token, address, tls)
        self._channel = open_channel(address, tls, options)

    def close(self) -> None:
        """Close the channel; calls in flight fail."""
        self._channel.close()

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise to_exception(failure) from failure


def seconds(value: float) -> float:
    """A timeout; InvalidRequest names `timeout_s`."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value <= MAX_TIMEOUT_S:
        allowed = f"a positive number of seconds, at most {MAX_TIMEOUT_S:.0f}"
        raise InvalidRequest("timeout_s", repr(value), allowed)
    return float(value)
