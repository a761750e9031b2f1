import fcntl
import os
import signal
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import Future
from functools import lru_cache
from math import inf
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from weakref import finalize

import numpy as np

from logitsieve.api.errors import IndexUnreadable, InvalidRequest, Unavailable
from logitsieve.api.keywords import ResolvedSpec
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.auto import Goal
from logitsieve.decoding.local_decoder import CHOICES_KEPT
from logitsieve.decoding.normalizers import FULL
from logitsieve.evaluation.operating_points import OperatingPoint, Setting, setting_of
from logitsieve.evaluation.precision import lower_bound
from logitsieve.index import Index
from logitsieve.server.models.sharded import ShardedIndex, ShardedModel
from logitsieve.server.scheduling.request import NamedEngine, Pace
from logitsieve.v1 import decoder_pb2 as pb

IGNORED = signal.SIGURG  # sent when somebody wants to write; ignored by default
AnyDecoder = LocalDecoder | ShardedModel
AnyIndex = Index | ShardedIndex
BYTES_PER_US = 10_000  # memory bandwidth of a core, to estimate a pass over W
WINDOW = 100
SCANNED = "", "candidates"  # normalizers that read only the head's rows; others read all of W
US_PER_RANDOM = 0.02  # time of a random number; a draw needs at most one for each id


class Watched:
    """Watches an index's files for writers, by the kernel's leases."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.rglob("*.safetensors"))
        self._files = [(path, path.stat(), _lease(path)) for path in paths]
        leases = [lease for _, _, lease in self._files if lease is not None]
        self.close = finalize(self, _close_all, leases)

    def check(self) -> None:
        """Raise IndexUnreadable if a file was written, or is about to be."""
        for path, before, lease in self._files if self.close.alive else ():
            if lease is None:
                _check_unwritten(path, before)
            elif fcntl.fcntl(lease, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
                raise IndexUnreadable(path, "somebody writes into the folder of a loaded version")


def _lease(path: Path) -> int | None:
    """Return a descriptor that holds a lease; None if the system grants none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, IGNORED)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _check_unwritten(path: Path, before: os.stat_result) -> None:
    try:
        now = path.stat()
    except OSError:
        return  # a removed file's mapped pages stay as they are
    same = (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)
    if same and (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        reason = f"written while it was loaded: {now.st_size} bytes, before {before.st_size}"
        raise IndexUnreadable(path, reason)


class EngineChoice(NamedTuple):
    engine: NamedEngine
    us_per_row: float
    pace: Pace
    origin: bytes
    goal: Goal


class DriftGuard:
    """Finds points whose live precision is below the one asked for. For the event loop alone.

    AUTO leaves a point, until a reload, when the lower 95 % bound of its misses exceeds what a
    request allows in two windows in a row. A single window would often be wrong by chance.
    """

    def __init__(self) -> None:
        self._shares: defaultdict[tuple[Setting, int], list[float]] = defaultdict(list)
        self._last: dict[tuple[Setting, int], float] = {}
        self._ceilings: dict[tuple[Setting, int], float] = {}

    def add(self, setting: Setting, shares: Mapping[int, float]) -> bool:
        told = {k: self._add((setting, k), share) for k, share in shares.items()}
        return any(told.values())

    def refuted(self, point: OperatingPoint, goal: Goal) -> bool:

        return not point.proven and any(
            self._ceilings.get((point.setting, k), 1.0) < least for k, least in goal.items()
        )

    def _add(self, key: tuple[Setting, int], share: float) -> bool:
        shares = self._shares[key]
        shares.append(share)
        if len(shares) < WINDOW:
            return False
        ceiling = 1.0 - lower_bound(1.0 - np.array(shares))
        shares.clear()
        both = max(ceiling, self._last.get(key, 1.0))
        self._last[key] = ceiling
        if both >= self._ceilings.get(key, 1.0):
            return False
        self._ceilings[key] = both
        return True


class UseCount:
    """Counts the uses of a version, each of them a `with leases:`. Thread-safe.

    After `end`, `idle` is done once no use is left. From then on, `with` raises Unavailable.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._lock = Lock()
        self._uses = 1  # its own, until `end`
        self.ended = False
        self.idle: Future[None] = Future()
        self.idle.set_running_or_notify_cancel()  # so that a cancelled wait does not cancel it

    def end(self) -> None:
        with self._lock:
            first, self.ended = not self.ended, True
        if first:
            self.__exit__()

    def __enter__(self) -> None:
        with self._lock:
            if not self._uses:
                raise Unavailable(f"model: {self._label} is being unloaded", "model")
            self._uses += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._uses -= 1
            idle = not self._uses
        if idle:
            self.idle.set_result(None)


class Served:
    """A loaded version; compute within `with served.leases:`."""

    def __init__(self, decoder: AnyDecoder, files: Watched | None = None) -> None:
        self.decoder, self.files = decoder, files
        self.offloaded = decoder.index.device != "cpu"
        self.leases = UseCount(f"{decoder.name}@{decoder.version}")
        self.left: set[OperatingPoint] = set()
        self._guard = DriftGuard()
        self._us_per_logit = decoder.index.dim * 4 / BYTES_PER_US
        self._us_per_draw = decoder.index.vocab_size * US_PER_RANDOM
        self._chosen = lru_cache(maxsize=CHOICES_KEPT)(self._choose)
        self._pace = lru_cache(maxsize=CHOICES_KEPT)(lambda engine, log_z: Pace())

    def choose(self, spec: ResolvedSpec, rows: int, k: int, log_z: bool = False) -> EngineChoice:
        auto = self.decoder.auto
        k_class = auto.k_class(k, spec.precision)
        return self._chosen(spec, auto.batch(rows), k_class, log_z)

    def extra_us(self, logits: int, draws: int) -> float:
        return logits * self._us_per_logit + draws * self._us_per_draw

    @property
    def whole(self) -> LocalDecoder:
        """The decoder of one index; InvalidRequest if the version is in shards."""
        if not isinstance(self.decoder, LocalDecoder):
            got = f"{self.decoder.name}, which is in shards"
            raise InvalidRequest("model", got, "one in one piece")
        return self.decoder

    @property
    def labels(self) -> tuple[str, ...]:
        index = self.decoder.index
        sizes = str(index.vocab_size), str(index.dim)
        return index.name, str(index.version), index.digest, *sizes, index.device

    @property
    def points(self) -> list[pb.OperatingPoint]:
        return [
            pb.OperatingPoint(
                head=pb.Head(name=point.head, knobs=point.knobs),
                rows=rows,
                us_per_row=us,
                precision_at=point.mean,
                mass_kept=point.mass_kept,
                proven=point.proven,
            )
            for point in self.decoder.points
            for rows, us in point.us_per_row.items()
        ]

    def learn(self, chosen: EngineChoice, shares: Mapping[int, float]) -> OperatingPoint | None:
        """Add an answer's shares of the true top k, by class of k. For the event loop alone.

        Returns the answer's operating point if AUTO leaves it.
        """
        point = self.decoder.auto.measured.get(setting_of(chosen.engine.head, chosen.engine.knobs))
        if point is None or point.proven or not self._guard.add(point.setting, shares):
            return None
        self._chosen.cache_clear()
        if not self._guard.refuted(point, chosen.goal):
            return None
        self.left.add(point)
        return point

    def close(self) -> None:
        self._chosen.cache_clear()
        self._pace.cache_clear()
        self.decoder.close()
        if self.files is not None:
            self.files.close()

    def _choose(self, spec: ResolvedSpec, batch: int, k: int, log_z: bool) -> EngineChoice:
        auto, goal = self.decoder.auto, dict[int, float]()
        head, knobs = spec.head, spec.knobs
        if spec.automatic:
            asked = k, spec.precision, spec.max_error
            goal = dict(auto.goal(*asked))
            head, knobs = auto.choose(batch, *asked, self._guard.refuted)
        engine = self.decoder.engine(head, knobs, spec.normalizer, spec.width)
        dense_us = self.decoder.index.vocab_size * self._us_per_logit
        point = auto.measured.get(setting_of(engine.head, engine.knobs))
        us = dense_us if point is None else point.us_at(batch)
        one_pass = log_z and (engine.head == FULL.name or engine.estimates_log_z)
        if not one_pass and (log_z or engine.normalizer not in SCANNED or spec.width < inf):
            us += dense_us
        return EngineChoice(engine, us, self._pace(engine, log_z), origin_of(engine), goal)


def origin_of(engine: NamedEngine) -> bytes:
    """Serialize the start of an engine's responses. Field 1 of all kinds is their Answer."""
    answer = pb.Answer(model=engine.model, version=engine.version, digest=engine.digest)
    answer.head.CopyFrom(pb.Head(name=engine.head, knobs=engine.knobs))
    return pb.TopKResponse(answer=answer).SerializeToString()
