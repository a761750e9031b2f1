"""Connections to a server, with TLS, API keys, timeouts and a limit on calls in flight."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from numbers import Real
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Self, TypeVar, cast

import grpc

from logitsieve.api.errors import DeadlineExceeded, InvalidRequest, Overloaded
from logitsieve.client.errors import to_exception
from logitsieve.utils.deadline import time_left
from logitsieve.utils.environment import is_loopback
from logitsieve.v1.rpcs import TIMEOUT

MAX_TIMEOUT_S = 3600.0
MARK = 0.25  # share of its timeout after which a waiting call counts as late; servers refuse at 0.5
CUT = 0.9
CUT_S = 0.05  # between two cuts, as many calls are late together
LEAST = 8  # lowest limit
RETRY_S = 0.1

Metadata = Sequence[tuple[str, str | bytes]]
T = TypeVar("T")
Awaiting = Coroutine[Any, Any, T]


class Throttle:
    """Limits the calls in flight while servers are crowded. Thread-safe.

    Refusing a call costs a server nearly as much as answering it. So the client has a limit like
    TCP's congestion window, which grows with answers and shrinks when a call is refused or waits
    long; at first there is none. Jacobson (1988), Congestion avoidance; RFC 3168.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._cut_at = -inf
        self.limit = inf
        self.in_flight = 0

    def enter(self) -> None:
        """Count a call that begins, or raise Overloaded."""
        with self._lock:
            if self.in_flight >= self.limit:
                reason = f"held back here, with {self.in_flight} in flight: servers are crowded"
                raise Overloaded(reason, RETRY_S)
            self.in_flight += 1

    def leave(self, crowded: bool) -> None:
        """Count a call that ends; `crowded` if it was refused, late or waited long."""
        with self._lock:
            if not crowded:
                self.limit += 1 / self.limit
            elif (now := self._clock()) >= self._cut_at + CUT_S:
                self._cut_at = now
                self.limit = max(LEAST, CUT * min(self.limit, self.in_flight))
            self.in_flight -= 1


@dataclass(frozen=True, kw_only=True)
class Tls:
    """PEM files: trusted authorities (by default gRPC's), and the client's certificate and key."""

    ca: Path | str | None = None
    cert: Path | str | None = None
    key: Path | str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        if (self.cert is None) != (self.key is None):
            missing = "tls.key" if self.key is None else "tls.cert"
            raise InvalidRequest(missing, "nothing", "a file: certificate and key go together")
        return grpc.ssl_channel_credentials(
            _read("tls.ca", self.ca), _read("tls.key", self.key), _read("tls.cert", self.cert)
        )


class Closing(ABC):
    """Closed by its `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; calls in flight fail."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncClosing(ABC):
    """Closed by its `async with` block."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection; calls in flight fail."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Connection:
    """A channel of `grpc` or `grpc.aio`, which connects at the first call.

    Methods are coroutines that await only `_sent`, so that blocking clients share them: there
    `_sent` never suspends, and `_run` returns the result at once.
    """

    other_port = "admin"  # named in errors, as the user may have meant it
    api: Any = grpc
    _sent: Any
    _run: Any

    def __init__(
        self,
        address: str,
        timeout_s: float,
        tls: Tls | None,
        api_key: str | None,
        options: Sequence[tuple[str, Any]],
    ) -> None:
        if api_key is None:
            api_key = os.environ.get("LOGITSIEVE_API_KEY", "")
        if not isinstance(address, str):
            allowed = "host:port, or several as ipv4:host:port,host:port"
            raise InvalidRequest("address", repr(address), allowed)
        self.address = address
        self.timeout_s = seconds(timeout_s)
        self._metadata: tuple[tuple[str, str | bytes], ...] = to_metadata(api_key, address, tls)
        self._throttle = Throttle()
        self._exception = partial(
            to_exception, address=self.address, tls=tls is not None, other_port=self.other_port
        )
        if _is_this_machine(address):  # a proxy would get the API key
            options = [*options, ("grpc.enable_http_proxy", 0)]
        if tls is None:
            self._channel = self.api.insecure_channel(self.address, options=options)
        else:
            credentials = tls.credentials()
            self._channel = self.api.secure_channel(self.address, credentials, options=options)

    def with_options(self, *, timeout_s: float | None = None, metadata: Metadata = ()) -> Self:
        """Return a client with another timeout or more metadata that shares this connection."""
        other = copy(self)
        if timeout_s is not None:
            other.timeout_s = seconds(timeout_s)
        other._metadata += tuple(map(checked_metadata, metadata))
        return other

    def _call(self, method: Any, request: Any, read: Callable[[Any], Any]) -> Any:
        return self._run(self._read(method, request, read))

    async def _read(self, method: Any, request: Any, read: Callable[[Any], T]) -> T:
        """Make a call if the throttle admits it, and translate errors to our exceptions."""
        left = time_left()  # for the computation that makes this call
        timeout_s = self.timeout_s if left is None else min(self.timeout_s, max(0.0, left))
        metadata = (*self._metadata, (TIMEOUT, str(ceil(timeout_s * 1000))))
        self._throttle.enter()
        crowded = False
        try:
            call = partial(method, request, timeout=timeout_s, metadata=metadata)
            response = await self._sent(call)
            if hasattr(response, "answer"):
                crowded = response.answer.queue_ns > MARK * timeout_s * 1e9
        except grpc.RpcError as failure:
            error = self._exception(failure)
            crowded = isinstance(error, Overloaded | DeadlineExceeded)
            raise error from failure
        finally:
            self._throttle.leave(crowded)
        return read(response)


class BlockingConnection(Connection, Closing):
    """A connection for blocking calls. Thread-safe."""

    def close(self) -> None:
        self._channel.close()

    async def _sent(self, call: Callable[[], Any]) -> Any:
        return call()

    def _run(self, work: Awaiting[T]) -> T:
        try:
            work.send(None)
        except StopIteration as end:
            return cast(T, end.value)
        raise AssertionError("a blocking `_sent` never suspends")


class AsyncConnection(Connection, AsyncClosing):
    """A connection for one event loop."""

    api = grpc.aio

    async def close(self) -> None:
        await self._channel.close()

    async def _sent(self, call: Callable[[], Any]) -> Any:
        return await call()

    def _run(self, work: Awaiting[T]) -> Awaiting[T]:
        return work


def seconds(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value <= MAX_TIMEOUT_S:
        allowed = f"a positive number of seconds, at most {MAX_TIMEOUT_S:.0f}"
        raise InvalidRequest("timeout_s", repr(value), allowed)
    return float(value)


def checked_metadata(pair: tuple[str, str | bytes]) -> tuple[str, str | bytes]:
    """Check a key and its value, which InvalidRequest does not show."""
    key, value = pair
    if not re.fullmatch("[0-9a-z_.-]+", key) or key.startswith(("grpc-", "logitsieve-")):
        raise InvalidRequest("metadata", f"the key {key!r:.80}", "lower-case letters, digits, -_.")
    kind = bytes if key.endswith("-bin") else str
    if not isinstance(value, kind) or not (kind is bytes or _is_printable(str(value))):
        allowed = "bytes for a key in -bin, else printable ASCII"
        raise InvalidRequest("metadata", f"another value of {key}", allowed)
    return key, value


def to_metadata(api_key: str, address: str, tls: Tls | None) -> tuple[tuple[str, str], ...]:
    if not api_key:
        return ()
    if not _is_printable(api_key) or " " in api_key:
        raise InvalidRequest("api_key", "other characters", "printable ASCII without spaces")
    if tls is None and not _is_this_machine(address):
        raise InvalidRequest("tls", "none", f"TLS, for an API key that goes to {address}")
    return (("authorization", f"Bearer {api_key}"),)


def _is_printable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _is_this_machine(address: str) -> bool:
    """Return True if all of "host:port", "[host]:port" or "ipv4:host:port,host:port" are local."""
    scheme, _, rest = address.partition(":")
    if scheme in ("unix", "unix-abstract"):
        return True
    targets = rest.lstrip("/") if scheme in ("ipv4", "ipv6", "dns") else address
    hosts = [target.rpartition(":")[0].strip("[]") for target in targets.split(",")]
    return all(is_loopback(host) for host in hosts)


def _read(field: str, file: Path | str | None) -> bytes | None:
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(field, error, "a PEM file") from error
