"""An ingress: our own server in an actor of Ray, over decoders whose shards are elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import uvloop

from logitsieve.api.errors import LogitsieveError
from logitsieve.decoding import LocalDecoder, ShardedDecoder, decoder_of
from logitsieve.decoding.sharded import Missing
from logitsieve.index import Index
from logitsieve.ray.serving.metrics import ShardMetrics
from logitsieve.ray.serving.opening import Opener
from logitsieve.ray.serving.remote import Patience
from logitsieve.ray.serving.shards import ShardOptions, app_names
from logitsieve.server.app import Server, create_server
from logitsieve.server.config import ServeConfig
from logitsieve.server.logs import configure
from logitsieve.server.models.repository import Repository
from logitsieve.server.models.routes import Version, read_aliases
from logitsieve.server.models.served import Served

T = TypeVar("T")

WAITING = 16  # requests that wait for shards, for each thread of the server


@dataclass(frozen=True, kw_only=True)
class IngressOptions:
    """What every ingress of a deployment has in common."""

    server: ServeConfig
    shards: ShardOptions
    patience_s: float  # that a shard is waited for
    missing: Missing

    @property
    def patience(self) -> Patience:
        """Where requests are answered without a shard, half of their time is left for that."""
        return Patience(self.patience_s, 0.5 if self.missing == "answer" else 1.0)


class VersionState(NamedTuple):
    """A version as an ingress has it."""

    name: str
    number: int
    state: str
    digest: str  # empty unless it is available
    error: str
    apps: tuple[str, ...]  # the applications of its shards


class IngressState(NamedTuple):
    """Where an ingress listens, and what it answers for."""

    node: str
    port: int
    metrics_port: int
    admin_port: int
    versions: tuple[VersionState, ...]


class Ingress:
    """The actor. Ray restarts it where it dies: it then listens on the same ports again.

    It has no coroutines: with any, Ray would run every method in an event loop, which `update` and
    `stop` block.
    """

    def __init__(self, options: IngressOptions) -> None:
        self._options = options
        configure(options.server.log_format, options.server.log_level)
        self._loop = uvloop.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()
        metrics = ShardMetrics()
        self._opener, config, repository = repository_of(options, metrics)
        self._server = self._run(_started(config, repository, metrics))

    def options(self) -> IngressOptions:
        return self._options

    def state(self) -> IngressState:
        """What it answers for now."""
        import ray

        server = self._server
        versions = tuple(map(_state_of, server.repository.versions()))
        node = ray.util.get_node_ip_address()
        return IngressState(node, server.port, server.metrics_port, server.admin_port, versions)

    def update(self, wanted: Iterable[tuple[str, int, str]], shards: ShardOptions) -> list[str]:
        """Answer for these (name, version, digest) and no others; what could not be done.

        From now on shards that are to be run get the options `shards`.

        Each version is put into service when all its shards answer, then aliases follow those of
        the folder, and what is not wanted any more is closed after its last request.
        """
        self._options = replace(self._options, shards=shards)
        self._opener.shards = shards
        repository, errors, left = self._server.repository, [], list[Served | None]()
        wanted = list(wanted)
        loaded = {(v.name, v.number): v for v in repository.versions()}
        for name, number, digest in wanted:
            if _state_of(loaded.get((name, number), Version(name, number))).digest != digest:
                try:
                    left.append(repository.replace(name, number))
                except LogitsieveError as error:
                    errors.append(f"{name}@{number}: {error}")
        errors += self._follow_aliases({name for name, _, _ in wanted})
        for name, number in loaded.keys() - {(name, number) for name, number, _ in wanted}:
            try:
                left.append(repository.unload(name, number))
            except LogitsieveError as error:
                errors.append(f"{name}@{number}: {error}")
        for served in left:
            if served is not None:
                _retire(served, repository)
        return errors

    def stop(self) -> None:
        """Finish what is in flight, and listen no more."""
        self._run(self._server.stop())

    def _follow_aliases(self, models: Iterable[str]) -> list[str]:
        repository, errors = self._server.repository, []
        for model in sorted(models):
            try:
                aliases = read_aliases(self._options.server.models / model)
                known = repository.routes.aliases.get(model, {})
                for alias, number in aliases.items():
                    if known.get(alias) != number:
                        repository.set_alias(model, alias, number)
            except LogitsieveError as error:
                errors.append(f"{model}: {error}")
        return errors

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def repository_of(
    options: IngressOptions, metrics: ShardMetrics
) -> tuple[Opener, ServeConfig, Repository]:
    """A repository whose shards are on Ray, what opens them, and the options of its server."""
    config = replace(options.server, threads=WAITING * options.server.threads)
    opener = Opener(options.server, options.shards, options.patience, metrics)
    decide = partial(_decoder_of, options.missing)
    return opener, config, Repository(config, opener, decoder=decide)


async def _started(config: ServeConfig, repository: Repository, metrics: ShardMetrics) -> Server:
    server = create_server(config, repository=repository)
    metrics.register(server.metrics.registry)
    await server.start()
    return server


def _decoder_of(missing: Missing, index: Index) -> LocalDecoder:
    return ShardedDecoder(index, missing=missing) if index.manifest.shards else decoder_of(index)


def _state_of(version: Version) -> VersionState:
    digest, apps = "", tuple[str, ...]()
    if version.served is not None:
        index = version.served.decoder.index
        digest, apps = index.digest, tuple(app_names(index.path, index.manifest))
    return VersionState(version.name, version.number, version.state, digest, version.error, apps)


def _retire(served: Served, repository: Repository) -> None:
    """Close a version that takes no more requests, after its last."""
    name, number = served.decoder.name, int(served.decoder.version)
    served.leases.end()
    served.leases.idle.result()
    served.close()
    repository.forget(name, number)
