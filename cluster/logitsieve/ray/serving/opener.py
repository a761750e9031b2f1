"""Opening a version whose shards are elsewhere, for the repository of a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from logitsieve.api.errors import IndexUnreadable
from logitsieve.decoding import Shard, ShardedDecoder
from logitsieve.decoding.sharded import Missing
from logitsieve.index import Index
from logitsieve.index.manifest import Manifest
from logitsieve.ray.serving.remote import RayShardDecoder, Rows
from logitsieve.ray.serving.shards import ShardOptions, app_names, handle_of, run_shards, running
from logitsieve.server.config import ServeConfig
from logitsieve.server.models.repository import open_configured
from logitsieve.server.models.sharded import ShardedModel, is_sharded, read_manifests
from logitsieve.utils.options import Progress


@dataclass(eq=False)
class Opener:
    """Opens versions; shards that do not run yet are run. An index in one piece is opened here."""

    local: ServeConfig  # for indexes in one piece
    shards: ShardOptions
    patience_s: float
    missing: Missing

    def __call__(self, path: Path, config: ServeConfig, progress: Progress) -> Index | ShardedModel:
        if not is_sharded(path):
            return open_configured(path, self.local, progress)
        manifests = read_manifests(path)
        names = app_names(path, manifests)
        if not running(names):
            run_shards(path, names, self.shards)
        shards = [self._shard(path, *each) for each in zip(names, manifests, strict=True)]
        decoder = ShardedDecoder(shards, name=path.parent.name, missing=self.missing)
        return ShardedModel(path, manifests, decoder)

    def _shard(self, path: Path, name: str, manifest: Manifest) -> Shard:
        whole, rows = manifest.shard, manifest.vocab_size
        if whole is None:
            raise IndexUnreadable(path, "a whole index lies among its shards")
        # Where requests are answered without a shard, half of their time is left for that.
        share = 0.5 if self.missing == "answer" else 1.0
        own = Rows(whole.first, rows, manifest.digest)
        decoder = RayShardDecoder(handle_of(name), own, self.patience_s, share)
        return Shard(decoder, whole.first, rows, whole.vocab_size, whole.softmax_sha256)
