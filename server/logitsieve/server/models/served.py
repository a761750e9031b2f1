"""A loaded version, and what is looked up once for each operating point that clients ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from threading import Lock
from types import MappingProxyType
from typing import NamedTuple

from logitsieve.api.decoder import KnobValues, PointRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.auto import CHOICES_KEPT, Kind
from logitsieve.decoding.decoder import POINTS_KEPT
from logitsieve.decoding.engine import Engine
from logitsieve.evaluation import OperatingPoint
from logitsieve.server.models.use_count import UseCount
from logitsieve.server.precision.drift_guard import DriftGuard, Move, Rungs, move_between
from logitsieve.server.rpc.codec import to_origin
from logitsieve.server.scheduling.costs import Costs
from logitsieve.v1 import decoder_pb2 as pb

Goal = tuple[Kind, float | None]  # the kind of a request, and the precision it asks for


class CostedPoint(NamedTuple):
    """An operating point, what it should cost, and how each of its responses begins."""

    point: Engine
    us_per_row: float
    us_beside: Callable[[int, int], float]  # of so many more logits and draws
    origin: bytes
    goal: Mapping[int, float] = MappingProxyType({})  # AUTO's: class of k -> precision
    dropped: tuple[Engine, ...] = ()  # what AUTO would have answered by, were live precision right


class Served:
    """A loaded version: what answers for it, and what it was measured to cost.

    Whoever asks it for anything that is computed does so within `with served.leases:`.
    """

    def __init__(self, decoder: LocalDecoder) -> None:
        self.decoder = decoder
        self.on_gpu = decoder.index.device != "cpu"
        self.leases = UseCount(f"{decoder.name}@{decoder.version}")
        self.guard = DriftGuard()
        self._lock = Lock()  # points are measured in another thread than they are judged in
        self._prices = _Prices(decoder, self.guard)

    def at(self, aim: PointRequest, rows: int, k: int, log_z: bool = False) -> CostedPoint:
        """What answers a request for `k` ids of each of `rows` rows.

        `log_z`: it finds one also where it names no normalizer.
        """
        prices = self._prices
        if not aim.automatic:
            return prices.named(aim.head, aim.knobs, aim.normalizer, log_z)
        kind = prices.auto.kind(rows, k, aim.precision)
        return prices.chosen(kind, aim.precision, aim.normalizer, log_z)

    @property
    def points(self) -> list[pb.OperatingPoint]:
        """The measured points, one for each batch size, as clients see them."""
        return [message for point in self.decoder.points for message in to_messages(point)]

    def measure_again(self, pause: Callable[[float], bool]) -> bool:
        """As LocalDecoder does: choices and prices change together, between two requests.

        Ends early, and changes nothing, where the version is being unloaded.
        """
        with self.leases:
            found = self.decoder.measure_again(lambda spent: pause(spent) or self.leases.ended)
            if found:
                self._reprice()
            return found

    @property
    def level(self) -> int:
        """How many steps AUTO is from what was measured, for the request that it is furthest."""
        return max((len(rungs) - 1 for rungs in self._prices.rungs.values()), default=0)

    def learn(self, verdicts: Iterable[tuple[Engine, Mapping[int, float]]]) -> list[Move]:
        """Shares of the true top-k that points found live, by class of k; what AUTO makes of it.

        Called on the event loop.
        """
        changed = [self.guard.add(point, shares) for point, shares in verdicts]
        if not any(changed):
            return []
        prices = self._prices
        moves = [
            move_between(rungs, after)
            for goal, rungs in prices.rungs.items()
            if len(after := prices.climb(goal)) != len(rungs)
        ]
        if moves:
            self._reprice()
        return moves

    def _reprice(self) -> None:
        with self._lock:
            old = self._prices
            self._prices = _Prices(self.decoder, self.guard, list(old.rungs))
            old.clear()

    def close(self) -> None:
        """Let go of the index once `leases` are idle."""
        self._prices.clear()
        self.decoder.close()


class _Prices:
    """Points and their prices as of one measurement, and as of what live answers have refuted."""

    def __init__(
        self, decoder: LocalDecoder, guard: DriftGuard, goals: Iterable[Goal] = ()
    ) -> None:
        self._decoder, self.auto, self._guard = decoder, decoder.auto, guard
        self._costs = Costs(self.auto.points, decoder.index)
        # (head or "", knobs in order of their names, normalizer or "", log Z anyhow) -> Priced
        self.named = lru_cache(maxsize=POINTS_KEPT)(self._named)
        # (kind of request, asked precision or None, normalizer or "", log Z anyhow) -> Priced
        self.chosen = lru_cache(maxsize=CHOICES_KEPT)(self._chosen)
        self.rungs = {goal: self.climb(goal) for goal in goals}

    def clear(self) -> None:
        """Forget the points, which keep the index mapped."""
        self.named.cache_clear()
        self.chosen.cache_clear()

    def climb(self, goal: Goal) -> Rungs:
        """The points that AUTO has left for a goal, and the one that it is at."""
        return self.auto.rungs(*goal, self._guard.ceiling)

    def _named(self, head: str, knobs: KnobValues, normalizer: str, log_z: bool) -> CostedPoint:
        return self._priced(self._decoder.point(head, knobs, normalizer), 1, log_z)

    def _chosen(
        self, kind: Kind, precision: float | None, normalizer: str, log_z: bool
    ) -> CostedPoint:
        *left, at = self._rungs((kind, precision))
        if left:
            point = self._point(at, normalizer)
        else:
            point = self.auto.point(kind, precision, normalizer)
        return self._priced(point, kind[0], log_z)._replace(
            goal=self.auto.goal(kind, precision),
            dropped=tuple(self._point(one, "") for one in left),
        )

    def _rungs(self, goal: Goal) -> Rungs:
        if goal not in self.rungs:
            if len(self.rungs) == CHOICES_KEPT:  # clients ask for any precisions they like
                self.chosen.cache_clear()
                self.rungs.clear()
            self.rungs[goal] = self.climb(goal)
        return self.rungs[goal]

    def _point(self, at: OperatingPoint | None, normalizer: str) -> Engine:
        if at is None:
            return self._decoder.point("exact", (), normalizer)
        return self._decoder.point(at.head, tuple(sorted(at.knobs.items())), normalizer)

    def _priced(self, point: Engine, rows: int, log_z: bool) -> CostedPoint:
        costs = self._costs
        us = costs.us_per_row(point.head, point.knobs, point.normalizer, rows, log_z)
        return CostedPoint(point, us, costs.us_beside, to_origin(point))


def to_messages(point: OperatingPoint) -> list[pb.OperatingPoint]:
    """One message for each batch size."""
    return [
        pb.OperatingPoint(
            head=pb.Head(name=point.head, knobs=point.knobs),
            rows=rows,
            us_per_row=us,
            precision_at=point.mean,
            mass_kept=point.mass_kept,
            proven=point.proven,
        )
        for rows, us in point.us_per_row.items()
    ]
