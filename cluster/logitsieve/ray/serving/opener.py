"""Opens versions for the repository of an ingress."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from logitsieve.api.decoder import Decoder
from logitsieve.decoding import Shard, ShardedDecoder
from logitsieve.decoding.sharded import Missing
from logitsieve.index import Index
from logitsieve.ray.serving.remote import RayShardDecoder
from logitsieve.ray.serving.shards import ShardOptions, app_names, handle_of, run_shards, running
from logitsieve.server.config import ServeConfig
from logitsieve.server.models.repository import open_configured
from logitsieve.server.models.sharded import ShardedModel, is_sharded, read_manifests
from logitsieve.utils.options import Progress


@dataclass(eq=False)
class Opener:
    """Opens versions, starting shards that do not run; an index in one piece is opened here."""

    local: ServeConfig  # for indexes in one piece
    shards: ShardOptions
    patience_s: float
    missing: Missing

    def __call__(self, path: Path, config: ServeConfig, progress: Progress) -> Index | ShardedModel:
        if not is_sharded(path):
            return open_configured(path, self.local, progress)
        manifests = read_manifests(path)
        names, shards = app_names(path, manifests), list[Shard]()
        if not running(names):
            run_shards(path, names, self.shards)
        for name, manifest in zip(names, manifests, strict=True):
            remote = RayShardDecoder(handle_of(name), manifest.digest, self.patience_s)
            shards.append(Shard.of(cast(Decoder, remote), manifest))  # no shard is asked for beams
        decoder = ShardedDecoder(shards, name=path.parent.name, missing=self.missing)
        return ShardedModel(path, manifests, decoder)
