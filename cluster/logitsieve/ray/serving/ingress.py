"""An ingress: our server in an actor of Ray, over decoders with shards in other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import uvloop

from logitsieve.api.errors import LogitsieveError
from logitsieve.decoding.sharded import Missing
from logitsieve.ray.serving.opener import Opener
from logitsieve.ray.serving.shards import ShardOptions, app_names, run_shards
from logitsieve.server.app import Server, create_server
from logitsieve.server.config import ServeConfig
from logitsieve.server.logs import configure
from logitsieve.server.models.repository import Repository
from logitsieve.server.models.routes import Version
from logitsieve.server.models.served import Served
from logitsieve.server.models.sharded import ShardedIndex, is_sharded, read_digest, read_manifests

T = TypeVar("T")

WAITING = 16  # requests that wait for shards, per thread of the server


@dataclass(frozen=True, kw_only=True)
class IngressOptions:
    """Options shared by all ingresses of a deployment."""

    server: ServeConfig
    shards: ShardOptions
    patience_s: float  # to wait for a shard
    missing: Missing


class VersionState(NamedTuple):
    """A version in an ingress."""

    name: str
    number: int
    state: str
    digest: str  # empty unless it is available
    error: str
    apps: tuple[str, ...] = ()  # the applications of its shards


class IngressState(NamedTuple):
    """The address of an ingress, and its versions."""

    node: str
    port: int
    metrics_port: int
    admin_port: int
    versions: tuple[VersionState, ...]


class Ingress:
    """The actor. When it dies, Ray restarts it on the same ports.

    It has no coroutines: with any, Ray would run every method in an event loop, which `update` and
    `stop` block.
    """

    def __init__(self, options: IngressOptions) -> None:
        self._options = options
        configure(options.server.log_format, options.server.log_level)
        self._loop = uvloop.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()
        local = options.server
        self._opener = Opener(local, options.shards, options.patience_s, options.missing)
        config = replace(local, threads=WAITING * local.threads)
        self._server = self._run(_started(config, Repository(config, self._opener)))

    def options(self) -> IngressOptions:
        return self._options

    def state(self) -> IngressState:
        import ray

        server = self._server
        versions = tuple(map(self._state, server.repository.versions()))
        node = ray.util.get_node_ip_address()
        return IngressState(node, server.port, server.metrics_port, server.admin_port, versions)

    def update(self, shards: ShardOptions) -> list[str]:
        """Follow the folder, with the options `shards`; return what failed.

        Versions come into service one after the other, each when all its shards have answered. Then
        aliases follow, and versions without a folder are closed after their last requests.
        """
        before, self._opener.shards = self._opener.shards, shards
        self._options = replace(self._options, shards=shards)
        repository, errors = self._server.repository, list[str]()
        found = repository.find()
        for name, number in found:
            with _noted(errors, f"{name}@{number}"):
                self._load(name, number, renew=before != shards)
        for name in sorted({name for name, _ in found}):
            with _noted(errors, name):
                repository.adopt_aliases(name)
        for version in repository.versions():
            if (version.name, version.number) not in found:
                with _noted(errors, version.label):
                    self._retire(repository.unload(version.name, version.number))
        return errors

    def stop(self) -> None:
        """Finish current requests, and listen no more."""
        self._run(self._server.stop())

    def _load(self, name: str, number: int, renew: bool) -> None:
        """Load a version unless it is loaded; `renew` gives its shards new options."""
        repository = self._server.repository
        path = self._options.server.models / name / str(number)
        version = repository.routes.by_key.get((name, number))
        loaded = None if version is None else version.served
        if loaded is None or loaded.decoder.index.digest != read_digest(path):
            self._retire(repository.replace(name, number), forget=False)
        elif renew and is_sharded(path):
            run_shards(path, app_names(path, read_manifests(path)), self._opener.shards)

    def _retire(self, served: Served | None, forget: bool = True) -> None:
        """Close a version after its last request."""
        if served is None:
            return
        served.leases.end()
        served.leases.idle.result()
        served.close()
        if forget:
            self._server.repository.forget(served.decoder.name, int(served.decoder.version))

    def _state(self, version: Version) -> VersionState:
        label = version.name, version.number, version.state
        if version.served is None:
            return VersionState(*label, "", version.error)
        index, apps = version.served.decoder.index, tuple[str, ...]()
        if isinstance(index, ShardedIndex):
            apps = tuple(app_names(index.path, index.manifests))
        return VersionState(*label, index.digest, version.error, apps)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _started(config: ServeConfig, repository: Repository) -> Server:
    server = create_server(config, repository=repository)
    await server.start()
    return server


@contextmanager
def _noted(errors: list[str], what: str) -> Iterator[None]:
    try:
        yield
    except (LogitsieveError, OSError) as error:
        errors.append(f"{what}: {error}")
