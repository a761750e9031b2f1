"""A loaded version: what answers for it, what each operating point costs, and who still uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from math import inf
from threading import Lock
from types import MappingProxyType
from typing import NamedTuple

from logitsieve.api.decoder import PointRequest
from logitsieve.api.errors import Unavailable
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.auto import CHOICES_KEPT, Kind
from logitsieve.decoding.decoder import ENGINES_KEPT
from logitsieve.decoding.engine import Engine
from logitsieve.decoding.normalizers import EXACT, NORMALIZERS, Prices, default_normalizer
from logitsieve.evaluation import OperatingPoint
from logitsieve.index import Index
from logitsieve.server.precision.drift_guard import Downgrades, DriftGuard, Move, move_between
from logitsieve.server.rpc.codec import to_origin
from logitsieve.v1 import decoder_pb2 as pb

# A point that was not measured is taken to read all of W, at what one core of a small machine
# streams.
BYTES_PER_US = 10_000

# A pass over all V takes at least what it takes to read a byte for each number of W.
BYTE_OF_FLOAT = 1 / 4

# A draw is taken to need a random number for each id, as a draw of the exact head does.
US_PER_RANDOM = 0.02


class CostedPoint(NamedTuple):
    """An operating point, its estimated cost, and the first bytes of each of its responses."""

    point: Engine
    us_per_row: float
    us_beside: Callable[[int, int], float]  # of so many more logits and draws
    origin: bytes
    goal: Mapping[int, float] = MappingProxyType({})  # AUTO's: class of k -> precision
    refuted: tuple[Engine, ...] = ()  # cheaper points that AUTO has left, by live precision


class UseCount:
    """Counts the uses of a version: `with leases:` is one use, which any thread may begin.

    After `end`, `idle` is done when no use is left; from then on `with` raises Unavailable.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._lock = Lock()
        self._uses = 1  # its own, until `end`
        self.ended = False
        self.idle: Future[None] = Future()
        self.idle.set_running_or_notify_cancel()  # cancelling a wait for it does not cancel it

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
    """A loaded version. Anything computed by it is computed within `with served.leases:`."""

    def __init__(self, decoder: LocalDecoder) -> None:
        self.decoder = decoder
        self.elsewhere = decoder.index.device != "cpu"
        self.leases = UseCount(f"{decoder.name}@{decoder.version}")
        self.guard = DriftGuard()
        self._lock = Lock()  # points are measured in another thread than they are judged in
        self._table = _PointTable(decoder, self.guard)

    def at(self, aim: PointRequest, rows: int, k: int, log_z: bool = False) -> CostedPoint:
        """The point that answers a request for `k` ids of each of `rows` rows.

        `log_z`: the request needs a log Z also where it names no normalizer.
        """
        table = self._table
        if not aim.automatic:
            return table.named(aim, log_z)
        return table.automatic(table.auto.kind(rows, k, aim.precision), aim, log_z)

    @property
    def points(self) -> list[pb.OperatingPoint]:
        """The measured points, one for each batch size, as clients see them."""
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

    @property
    def downgrade_depth(self) -> int:
        return max((len(points) - 1 for points in self._table.downgrades.values()), default=0)

    def learn(self, verdicts: Iterable[tuple[Engine, Mapping[int, float]]]) -> list[Move]:
        """Take in each point's shares of the true top-k, by class of k; the moves AUTO then makes.

        Called on the event loop.
        """
        changed = [self.guard.add(point, shares) for point, shares in verdicts]
        if not any(changed):
            return []
        table = self._table
        moves = [
            move_between(before, after)
            for (kind, precision), before in table.downgrades.items()
            if len(after := table.find_downgrades(kind, precision)) != len(before)
        ]
        if moves:
            self._renew_table()
        return moves

    def _renew_table(self) -> None:
        with self._lock:
            old = self._table
            self._table = _PointTable(self.decoder, self.guard, list(old.downgrades))
            old.clear()

    def close(self) -> None:
        self._table.clear()
        self.decoder.close()


class Costs:
    """Microseconds per row, from the index's calibration where it has the point."""

    def __init__(self, points: Sequence[OperatingPoint], index: Index) -> None:
        self._us_per_logit = index.dim * 4 / BYTES_PER_US
        self._us_per_draw = index.vocab_size * US_PER_RANDOM
        self._dense_us = index.vocab_size * self._us_per_logit
        self._vocab_size = index.vocab_size
        self._default = default_normalizer(index)
        self._points = {(point.head, _key(point.knobs)): point for point in points}

    def us_per_row(
        self, head: str, knobs: Mapping[str, float], normalizer: str, rows: int, log_z: bool
    ) -> float:
        """About the most that a row takes, by the batch size nearest to `rows` per call."""
        point = self._points.get((head, _key(knobs)))
        us = self._dense_us if point is None else point.us_at(rows)
        if normalizer or log_z:
            pass_us = partial(self._pass_us, rows)
            prices = Prices(us, self._us_per_logit, self._vocab_size, pass_us)
            us += NORMALIZERS[normalizer or self._default].cost(prices)
        return us

    def us_beside(self, logits: int, draws: int) -> float:
        """Microseconds for so many more logits and draws, all rows of a request together."""
        return logits * self._us_per_logit + draws * self._us_per_draw

    def _pass_us(self, rows: int, head: str) -> float:
        """A pass over all V as `head` makes it costs what the head's dearest point does."""
        alike = [point for point in self._points.values() if point.head == head]
        us = max((point.us_at(rows) for point in alike), default=self._dense_us)
        return max(us, BYTE_OF_FLOAT * self._dense_us)


def _key(knobs: Mapping[str, float]) -> frozenset[tuple[str, float]]:
    return frozenset(knobs.items())


class _PointTable:
    """Costed points as of one measurement and one state of the guard, made at the first request."""

    def __init__(
        self,
        decoder: LocalDecoder,
        guard: DriftGuard,
        keys: Iterable[tuple[Kind, float | None]] = (),
    ) -> None:
        self._decoder, self.auto, self._guard = decoder, decoder.auto, guard
        self._costs = Costs(self.auto.points, decoder.index)
        self.named = lru_cache(maxsize=ENGINES_KEPT)(self._named)
        self.automatic = lru_cache(maxsize=CHOICES_KEPT)(self._automatic)
        # (kind of request, precision asked for) -> points that AUTO has left, then the one it is at
        self.downgrades = {key: self.find_downgrades(*key) for key in keys}

    def clear(self) -> None:
        self.named.cache_clear()
        self.automatic.cache_clear()

    def find_downgrades(self, kind: Kind, precision: float | None) -> Downgrades:
        return self.auto.downgrades(kind, precision, self._guard.ceiling)

    def _named(self, aim: PointRequest, log_z: bool) -> CostedPoint:
        point = self._decoder.engine(aim.head, aim.knobs, aim.normalizer, aim.width)
        return self._costed(point, 1, log_z)

    def _automatic(self, kind: Kind, aim: PointRequest, log_z: bool) -> CostedPoint:
        precision, normalizer = aim.precision, aim.normalizer
        if (kind, precision) not in self.downgrades:
            if len(self.downgrades) == CHOICES_KEPT:  # clients ask for any precisions they like
                self.automatic.cache_clear()
                self.downgrades.clear()
            self.downgrades[kind, precision] = self.find_downgrades(kind, precision)
        *refuted, current = self.downgrades[kind, precision]
        if refuted:
            point = self._engine(current, normalizer, aim.width)
        else:
            point = self.auto.engine(kind, precision, normalizer, aim.width)
        return self._costed(point, kind[0], log_z)._replace(
            goal=self.auto.goal(kind[1], precision),
            refuted=tuple(self._engine(one) for one in refuted),
        )

    def _engine(
        self, point: OperatingPoint | None, normalizer: str = "", width: float = inf
    ) -> Engine:
        if point is None:
            return self._decoder.engine("exact", (), normalizer, width)
        knobs = tuple(sorted(point.knobs.items()))
        return self._decoder.engine(point.head, knobs, normalizer, width)

    def _costed(self, point: Engine, rows: int, log_z: bool) -> CostedPoint:
        costs = self._costs
        normalizer = point.normalizer if point.width == inf else EXACT.name  # at the dearest
        us = costs.us_per_row(point.head, point.knobs, normalizer, rows, log_z)
        return CostedPoint(point, us, costs.us_beside, to_origin(point))
