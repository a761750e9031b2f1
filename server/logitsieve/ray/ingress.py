"""An ingress: a server in an actor of Ray, over shards in other processes."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, TypeVar, cast

import uvloop

from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import LogitsieveError
from logitsieve.decoding import Shard, ShardedDecoder
from logitsieve.index import Index
from logitsieve.ray import RayOptions
from logitsieve.ray.remote import RayShardDecoder
from logitsieve.ray.shards import app_names, handle_of, run_shards, running
from logitsieve.server.app import create_server
from logitsieve.server.config import ServeConfig
from logitsieve.server.logs import configure
from logitsieve.server.models.repository import Repository, open_configured
from logitsieve.server.models.routes import Version
from logitsieve.server.models.served import Served
from logitsieve.server.models.sharded import (
    ShardedIndex,
    ShardedModel,
    is_sharded,
    read_digest,
    read_manifests,
)
from logitsieve.utils.options import Progress

T = TypeVar("T")

WAITING = 16  # requests for each thread, as they wait for shards


class VersionState(NamedTuple):
    name: str
    number: int
    state: str
    digest: str
    error: str
    apps: tuple[str, ...] = ()


class IngressState(NamedTuple):
    node: str
    port: int
    http_port: int
    admin_port: int
    versions: tuple[VersionState, ...]


class Ingress:
    """An actor that Ray restarts on the same ports.

    It has no coroutines, because Ray would then run all its methods on an event loop.
    """

    def __init__(self, config: ServeConfig, options: RayOptions) -> None:
        self._config, self._options = config, options
        configure(config.log_format, config.log_level)
        self._loop = uvloop.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()
        waiting = replace(config, threads=WAITING * config.threads)
        self._server = create_server(waiting, repository=Repository(waiting, self._open))
        self._run(self._server.start())

    def options(self) -> tuple[ServeConfig, RayOptions]:
        return self._config, self._options

    def state(self) -> IngressState:
        import ray

        server = self._server
        versions = tuple(map(self._state, server.repository.versions()))
        node = ray.util.get_node_ip_address()
        return IngressState(node, server.port, server.http_port, server.admin_port, versions)

    def update(self, options: RayOptions) -> list[str]:
        """Follow changes of the folder, `replicas` and `cpus`; return errors.

        A version answers once all its shards do. One without a folder is closed when idle.
        """
        before, self._options = self._options, options
        repository, errors = self._server.repository, list[str]()
        versions = repository.find()
        for name, number in versions:
            with _noted(errors, f"{name}@{number}"):
                self._load(name, number, renew=before != options)
        for name in sorted({name for name, _ in versions}):
            with _noted(errors, name):
                repository.adopt_aliases(name)
        for version in repository.versions():
            if (version.name, version.number) not in versions:
                with _noted(errors, version.label):
                    self._retire(repository.unload(version.name, version.number))
        return errors

    def stop(self) -> None:
        self._run(self._server.stop())

    def _open(self, path: Path, config: ServeConfig, progress: Progress) -> Index | ShardedModel:
        if not is_sharded(path):
            return open_configured(path, self._config, progress)
        manifests, options = read_manifests(path), self._options
        names, shards = app_names(path, manifests), list[Shard]()
        if not running(names):
            run_shards(path, names, self._config, options)
        for name, manifest in zip(names, manifests, strict=True):
            remote = RayShardDecoder(handle_of(name), manifest.digest, options.patience_s)
            shards.append(Shard.of(cast(Decoder, remote), manifest))
        decoder = ShardedDecoder(shards, name=path.parent.name, missing=options.missing)
        return ShardedModel(path, manifests, decoder)

    def _load(self, name: str, number: int, renew: bool) -> None:
        """Load a version unless it is loaded; `renew` gives its shards new options."""
        repository = self._server.repository
        path = self._config.model_repository / name / str(number)
        version = repository.routes.by_key.get((name, number))
        loaded = None if version is None else version.served
        if loaded is None or loaded.decoder.index.digest != read_digest(path):
            self._retire(repository.replace(name, number), forget=False)
        elif renew and is_sharded(path):
            run_shards(path, app_names(path, read_manifests(path)), self._config, self._options)

    def _retire(self, served: Served | None, forget: bool = True) -> None:
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


@contextmanager
def _noted(errors: list[str], what: str) -> Iterator[None]:
    try:
        yield
    except (LogitsieveError, OSError) as error:
        errors.append(f"{what}: {error}")
