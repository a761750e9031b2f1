"""A version in shards, as the server answers from it: in place of a decoder over one index."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import KnobValues
from logitsieve.api.errors import IndexUnreadable
from logitsieve.api.requests import Beams, Sampling
from logitsieve.api.results import BeamStepReply, Float32, Int32, SampleReply, ScoreReply, TopKReply
from logitsieve.decoding import ShardedDecoder
from logitsieve.decoding.auto import Auto
from logitsieve.decoding.decoder import ENGINES_KEPT
from logitsieve.evaluation import OperatingPoint
from logitsieve.index.files import read_small
from logitsieve.index.manifest import MANIFEST_FILE, MAX_MANIFEST, Manifest
from logitsieve.index.split import SHARDS_FOLDER


def is_sharded(version: Path) -> bool:
    """Whether the folder of a version has shards in it."""
    return (version / SHARDS_FOLDER).is_dir()


def read_manifests(version: Path) -> list[Manifest]:
    """The manifests of a version's shards, in their order. IndexUnreadable."""
    folder = version / SHARDS_FOLDER
    count = sum(each.name.isdecimal() for each in folder.iterdir())
    if not count:
        raise IndexUnreadable(folder, "it has no shards")
    return [_read_manifest(folder / str(number)) for number in range(1, count + 1)]


def digest_of(manifests: Sequence[Manifest]) -> str:
    """The identity of a version in shards (hex): equal digests answer equally."""
    return hashlib.sha256("".join(each.digest for each in manifests).encode()).hexdigest()


def read_digest(version: Path) -> str:
    """The identity of the version that lies in a folder, in shards or not. IndexUnreadable."""
    if is_sharded(version):
        return digest_of(read_manifests(version))
    return _read_manifest(version).digest


class ShardedIndex:
    """The facts of a version in shards that the server shows, and checks requests by."""

    device = "shards"

    def __init__(self, version: Path, manifests: Sequence[Manifest]) -> None:
        first, self.path, self.manifests = manifests[0], version, tuple(manifests)
        self.name, self.version = version.parent.name, int(version.name)
        self.digest = digest_of(manifests)
        self.vocab_size = first.vocab_size if first.shard is None else first.shard.vocab_size
        self.dim, self.default_head = first.dim, first.default_head
        self.heads = tuple(n for n in first.heads if all(n in each.heads for each in manifests))


class ShardedModel:
    """Engines over shards. AUTO is the default head: calibrations are of one index.

    `warm` returns when every shard has answered: a version is not served before.
    """

    def __init__(
        self, version: Path, manifests: Sequence[Manifest], decoder: ShardedDecoder
    ) -> None:
        self.index, self.decoder = ShardedIndex(version, manifests), decoder
        self.name, self.version = self.index.name, str(self.index.version)
        self.points: tuple[OperatingPoint, ...] = ()
        stored = self.index.default_head, ()
        self.auto = Auto((), {}, self.index.vocab_size, stored)
        self.engine = lru_cache(maxsize=ENGINES_KEPT)(self._make_engine)

    def warm(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Warm every shard."""
        for number, shard in enumerate(self.decoder.shards, start=1):
            warm: Callable[[], object] = getattr(shard.decoder, "warm", lambda: None)
            warm()
            if progress is not None:
                progress("shards", number, len(self.decoder.shards))

    def close(self) -> None:
        """Close the shards; no call may be under way."""
        self.engine.cache_clear()
        self.decoder.close()

    def _make_engine(
        self, head: str, knobs: KnobValues, normalizer: str, width: float = inf
    ) -> ShardedEngine:
        return ShardedEngine(self, head or self.index.default_head, dict(knobs), normalizer, width)


class ShardedEngine:
    """A version in shards at one head, knobs and normalizer; see `Engine`."""

    def __init__(
        self,
        model: ShardedModel,
        head: str,
        knobs: Mapping[str, float],
        normalizer: str,
        width: float,
    ) -> None:
        self.model, self.version, self.digest = model.name, model.version, model.index.digest
        self.head, self.knobs = head, knobs
        self.normalizer, self.width = normalizer, width
        self._decoder = model.decoder
        self._target: dict[str, Any] = {"head": head, "knobs": knobs}
        if normalizer:
            self._target["normalizer"] = normalizer
        if width < inf:
            self._target["width"] = width

    def topk(
        self, hidden: np.ndarray[Any, Any], k: int, constraints: Constraints | None = None
    ) -> TopKReply:
        """The k best tokens of each row of `hidden` [B, D]."""
        return self._decoder.topk(hidden, k, constraints=constraints, **self._target)

    def score(self, hidden: Float32, targets: Int32, constraints: Constraints | None) -> ScoreReply:
        """Log-probabilities of `targets` [B, T]."""
        return self._decoder.score(hidden, targets, constraints=constraints, **self._target)

    def sample(
        self, hidden: Float32, sampling: Sampling, constraints: Constraints | None
    ) -> SampleReply:
        """Draws for each row."""
        options: dict[str, Any] = sampling._asdict()
        return self._decoder.sample(hidden, constraints=constraints, **options, **self._target)

    def beam_step(
        self, hidden: Float32, beams: Beams, constraints: Constraints | None
    ) -> BeamStepReply:
        """The best continuations of hypotheses."""
        options: dict[str, Any] = beams._asdict()
        return self._decoder.beam_step(hidden, constraints=constraints, **options, **self._target)


def _read_manifest(folder: Path) -> Manifest:
    file = folder / MANIFEST_FILE
    return Manifest.from_json(read_small(file, MAX_MANIFEST), file)
