"""Clients of a server's admin port, which load, unload and name versions of models."""

from collections.abc import Sequence
from typing import Any, cast

from logitsieve.api.checks import number
from logitsieve.client.connection import AsyncConnection, BlockingConnection, Connection, Tls
from logitsieve.client.decoder_client import ModelInfo, model_info
from logitsieve.client.remote_decoder import awaited
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import AdminStub

TIMEOUT_S = 600.0  # to read a large index and compile kernels
DRAIN_S = 10.0
MAX_DRAIN_S = 3600.0


def drain_seconds(value: float) -> float:
    """Check `drain_s`."""
    return number("drain_s", value, 0.0, MAX_DRAIN_S)


class AdminConnection(Connection):
    """A connection to the admin port, without retries."""

    other_port = "public"

    def __init__(
        self,
        address: str = "localhost:50052",
        *,
        timeout_s: float = TIMEOUT_S,
        tls: Tls | None = None,
        api_key: str | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        options = [("grpc.enable_retries", 0), *options]
        super().__init__(address, timeout_s, tls, api_key, options)
        self._admin = AdminStub(self._channel)


class AdminClient(AdminConnection, BlockingConnection):
    """The Admin service at `address`, which finishes what it began even after DeadlineExceeded."""

    def load(self, name: str, version: int, alias: str = "") -> ModelInfo:
        """Open a version, and point `alias` at it once it answers.

        Raises ModelNotFound, InvalidRequest if it cannot be opened, or Unavailable if the alias
        cannot be written; then nothing has changed.
        """
        request = pb.LoadRequest(name=name, version=str(version), alias=alias)
        return cast(ModelInfo, self._call(self._admin.Load, request, model_info))

    def unload(self, name: str, version: int, drain_s: float = DRAIN_S) -> ModelInfo:
        """Send no more requests to a version, and wait up to `drain_s` seconds for current ones.

        The state is "unloading" while requests use it, then "unspecified". Raises ModelNotFound,
        or InvalidRequest if an alias points at it.
        """
        drain_ms = round(drain_seconds(drain_s) * 1000)
        request = pb.UnloadRequest(name=name, version=str(version), drain_ms=drain_ms)
        return cast(ModelInfo, self._call(self._admin.Unload, request, model_info))

    def set_alias(self, name: str, alias: str, version: int | None) -> ModelInfo:
        """Point `alias` at a loaded version; None removes the alias.

        Raises ModelNotFound, InvalidRequest, or Unavailable if it cannot be written.
        """
        number = "" if version is None else str(version)
        request = pb.SetAliasRequest(name=name, alias=alias, version=number)
        return cast(ModelInfo, self._call(self._admin.SetAlias, request, model_info))


class AsyncAdminClient(AdminConnection, AsyncConnection):
    """An `AdminClient` for one event loop."""

    load = awaited(AdminClient.load)
    unload = awaited(AdminClient.unload)
    set_alias = awaited(AdminClient.set_alias)
