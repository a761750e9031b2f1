"""Opening a version of which other processes have the shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from logitsieve.api.errors import IndexUnreadable
from logitsieve.heads.sharded import Shard
from logitsieve.index import Index, Manifest, open_index
from logitsieve.ray.serving.metrics import ShardCalls, ShardMetrics
from logitsieve.ray.serving.remote import Patience, RemoteShard
from logitsieve.ray.serving.shards import (
    ShardOptions,
    app_names,
    handle_of,
    read_manifest,
    run_shards,
    running,
)
from logitsieve.server.config import ServeConfig
from logitsieve.server.models.repository import open_configured
from logitsieve.utils.options import Progress

START_S = 300.0  # that a shard may take to be started again before a version counts as failed


class Opener:
    """Opens versions for a Repository; shards that do not run yet are run."""

    def __init__(
        self, local: ServeConfig, shards: ShardOptions, patience: Patience, metrics: ShardMetrics
    ) -> None:
        self._local, self.shards = local, shards  # `local` is for indexes in one piece
        self._patience, self._metrics = patience, metrics

    def __call__(self, path: Path, config: ServeConfig, progress: Progress) -> Index:
        manifest = read_manifest(path)
        if not manifest.shards:
            return open_configured(path, self._local, progress)
        names = app_names(path, manifest)
        if not running(names):
            run_shards(path, manifest, self.shards)
        return open_index(
            path,
            verify=config.verify,
            kernel_cache=config.kernel_cache,
            progress=progress,
            connect=self._connect(path, names),
        )

    def _connect(self, path: Path, names: list[str]) -> Callable[[int], tuple[Manifest, Shard]]:
        def connect(number: int) -> tuple[Manifest, Shard]:
            calls = ShardCalls(self._metrics, path.parent.name, int(path.name), number)
            return remote_shard(handle_of(names[number - 1]), self._patience, calls, path)

        return connect


def remote_shard(
    handle: Any, patience: Patience, calls: ShardCalls, path: Path
) -> tuple[Manifest, Shard]:
    """What the replicas of a handle say that they have, and a proxy of it."""
    data = handle.manifest.remote().result(timeout_s=START_S)
    manifest = Manifest.from_json(data, path)
    own, size = manifest.shard, (manifest.vocab_size, manifest.dim)
    if own is None:
        raise IndexUnreadable(path, "its shards on Ray are a whole index, not a shard")
    return manifest, cast("Shard", RemoteShard(handle, own, size, patience, calls))
