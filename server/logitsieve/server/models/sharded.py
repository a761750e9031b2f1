import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import inf
from pathlib import Path

from logitsieve.api.keywords import KnobValues
from logitsieve.decoding import ShardedDecoder
from logitsieve.decoding.auto import Auto
from logitsieve.decoding.local_decoder import ENGINES_KEPT
from logitsieve.decoding.sharded import ShardedEngine
from logitsieve.evaluation import OperatingPoint
from logitsieve.index.manifest import Manifest
from logitsieve.index.reader import read_manifest
from logitsieve.index.split import SHARDS_FOLDER, shard_folders


def is_sharded(version: Path) -> bool:
    return (version / SHARDS_FOLDER).is_dir()


def read_manifests(version: Path) -> list[Manifest]:
    return [read_manifest(folder) for folder in shard_folders(version)]


def digest_of(manifests: Sequence[Manifest]) -> str:
    return hashlib.sha256("".join(each.digest for each in manifests).encode()).hexdigest()


def read_digest(version: Path) -> str:
    if is_sharded(version):
        return digest_of(read_manifests(version))
    return read_manifest(version).digest


class ShardedIndex:
    device = "shards"

    def __init__(self, version: Path, manifests: Sequence[Manifest]) -> None:
        first, self.path, self.manifests = manifests[0], version, tuple(manifests)
        self.name, self.version = version.parent.name, int(version.name)
        self.digest = digest_of(manifests)
        self.vocab_size = sum(each.vocab_size for each in manifests)
        self.dim, self.default_head = first.dim, first.default_head
        self.heads = tuple(n for n in first.heads if all(n in each.heads for each in manifests))


class ShardedModel:
    """A decoder over shards. AUTO takes the default head, as shards are not calibrated together."""

    def __init__(
        self, version: Path, manifests: Sequence[Manifest], decoder: ShardedDecoder
    ) -> None:
        self.index, self.decoder = ShardedIndex(version, manifests), decoder
        self.name, self.version = self.index.name, str(self.index.version)
        self.points: tuple[OperatingPoint, ...] = ()
        stored = self.index.default_head, ()
        self.auto = Auto((), {}, self.index.vocab_size, stored, self.index.heads)
        self.engine = lru_cache(maxsize=ENGINES_KEPT)(partial(ShardedPoint, self))

    def warm(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        for number, shard in enumerate(self.decoder.shards, start=1):
            warm: Callable[[], object] = getattr(shard.decoder, "warm", lambda: None)
            warm()
            if progress is not None:
                progress("shards", number, len(self.decoder.shards))

    def close(self) -> None:
        self.engine.cache_clear()
        self.decoder.close()


class ShardedPoint(ShardedEngine):
    estimates_log_z = False

    def __init__(
        self, model: ShardedModel, head: str, knobs: KnobValues, normalizer: str, width: float = inf
    ) -> None:
        self.model, self.version, self.digest = model.name, model.version, model.index.digest
        self.head, self.knobs = head or model.index.default_head, dict(knobs)
        self.normalizer, self.width = normalizer, width
        spec: dict[str, object] = {"head": self.head, "knobs": self.knobs}
        spec["normalizer"] = normalizer or None
        super().__init__(model.decoder, {**spec, "width": width if width < inf else None})
