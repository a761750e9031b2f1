"""Operating points, and AUTO: the cheapest of them that is precise enough.

A point is a head at one setting of its knobs, with its measurements. Its precision is a
property of the index; its time, of the machine and of the rows a call. A precision counts as met
when its lower 95 % confidence bound meets it, so luck on few contexts buys nothing.

Shape letters: B batch rows, K answers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KS = (1, 5, 10)  # P@k is measured at these; any k counts as the next one
HALF = 0.5  # of the misses: so that a few steps lead from any point to a proof
BEYOND = 0  # the class of a larger k: no precision was measured there, only a proof will do


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatingPoint:
    """A head at a setting of its knobs, as measured; the mappings are by k and by batch rows."""

    head: str
    knobs: Mapping[str, float]
    proven: bool  # whether the head proves its answers
    mean: Mapping[int, float]  # k -> P@k
    low: Mapping[int, float]  # k -> its lower 95 % bound
    us_per_row: Mapping[int, float]  # B -> microseconds a row; at least one
    mass_kept: float
    candidates: float  # rows of W scanned a context

    def us_at(self, rows: int) -> float:
        """Microseconds a row at the measured batch size nearest to `rows`."""
        return self.us_per_row[nearest(sorted(self.us_per_row), rows)]

    def meets(self, precision: float, k: int) -> bool:
        """True if P@k, k a class, is at least `precision`; nothing but a proof meets 1."""
        return self.proven or (precision < 1 and self.low.get(k, 0.0) >= precision)

    @property
    def label(self) -> str:
        return " ".join([self.head, *(f"{name}={value:g}" for name, value in self.knobs.items())])


def read_points(entries: Iterable[Mapping[str, Any]]) -> tuple[OperatingPoint, ...]:
    """The `points` of a checked calibration.json: one for each head and setting, in their order."""
    settings: dict[tuple[str, frozenset[tuple[str, float]]], list[Mapping[str, Any]]] = {}
    for entry in entries:
        head = entry["head"]
        settings.setdefault((head["name"], frozenset(head["knobs"].items())), []).append(entry)
    return tuple(_point(same) for same in settings.values())


def _point(entries: Sequence[Mapping[str, Any]]) -> OperatingPoint:
    """Entries of one setting differ in `rows` and `us_per_row`."""
    one = entries[0]
    return OperatingPoint(
        head=one["head"]["name"],
        knobs=dict(one["head"]["knobs"]),
        proven=bool(one.get("proven", False)),
        mean={int(k): precision["mean"] for k, precision in one["precision"].items()},
        low={int(k): precision["low"] for k, precision in one["precision"].items()},
        us_per_row={entry["rows"]: entry["us_per_row"] for entry in entries},
        mass_kept=one["mass_kept"],
        candidates=one["candidates"],
    )


def read_target(config: Mapping[str, Any]) -> dict[int, float]:
    """k -> the precision that an index was built for; nothing where it was built for none."""
    target = config.get("target_precision")
    if not isinstance(target, Mapping):
        return {}
    wanted = {k: target.get(f"p{k}") for k in KS}
    return {k: float(p) for k, p in wanted.items() if isinstance(p, (int, float)) and 0 < p <= 1}


# k -> its class, for k up to the last of KS.
_CLASSES = tuple(next(each for each in KS if k <= each) for k in range(KS[-1] + 1))


def k_class(k: int) -> int:
    """`k` >= 1 rounded up to one at which precision is measured, or BEYOND."""
    return _CLASSES[k] if k < len(_CLASSES) else BEYOND


def nearest(batches: Sequence[int], rows: int) -> int:
    """The one of `batches`, which rise, nearest to `rows` in ratio; of two the smaller."""
    place = bisect_left(batches, rows)
    if place == 0 or place == len(batches):
        return batches[min(place, len(batches) - 1)]
    below, above = batches[place - 1], batches[place]
    return below if rows * rows <= below * above else above


def undominated(points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    """Points that no other beats or equals in everything: time at each batch size, P@k at each k.

    Of equals the first stays. Only a proven point dominates a proven one, so one always stays.
    """
    kept: list[OperatingPoint] = []
    for point in points:
        if any(_dominates(other, point) for other in kept):
            continue
        kept = [other for other in kept if not _dominates(point, other)] + [point]
    return kept


def _dominates(one: OperatingPoint, other: OperatingPoint) -> bool:
    if other.proven and not one.proven:
        return False
    return all(
        batch in one.us_per_row and one.us_per_row[batch] <= us
        for batch, us in other.us_per_row.items()
    ) and all(one.proven or one.low.get(k, 0.0) >= low for k, low in other.low.items())


def _missed(point: OperatingPoint, ks: Iterable[int]) -> float:
    return sum(1 - point.low.get(k, 0.0) for k in ks)


class Chooser:
    """Chooses among measured points by precision, k and batch size. Immutable."""

    def __init__(
        self, points: Sequence[OperatingPoint], target: Mapping[int, float] | None = None
    ) -> None:
        """`target`, k -> precision, is what the index was built for."""
        self.points = tuple(points)
        self.target = dict(target or {})
        batches = sorted({batch for point in points for batch in point.us_per_row}) or [1]
        # Points by their time at each batch size, of equals the proven one first.
        self._cheapest = {
            batch: sorted(points, key=lambda point: (point.us_at(batch), not point.proven))
            for batch in batches
        }
        self._batch_of = tuple(nearest(batches, max(1, rows)) for rows in range(batches[-1] + 1))

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(self._cheapest)

    def batch(self, rows: int) -> int:
        """The calibrated batch size nearest to `rows` a call, in ratio."""
        classes = self._batch_of
        return classes[rows] if rows < len(classes) else classes[-1]

    def choose(self, batch: int, k: int, precision: float | None) -> OperatingPoint | None:
        """The cheapest point at `batch`, one of `batches`, that meets `precision` at class `k`.

        `precision` None is the index's own target: each of its precisions, whatever k is. 1 is a
        proof, and so is any precision for k BEYOND. None where nothing measured will do: no target
        to go by, or no proven point among `points`.
        """
        goal = self.goal(k, precision)
        if not goal:
            return None
        for point in self._cheapest[batch]:
            if all(point.meets(least, each) for each, least in goal.items()):
                return point
        return None

    def goal(self, k: int, precision: float | None) -> Mapping[int, float]:
        """Class of k -> the precision that must be met there; empty where there is no target."""
        return self.target if precision is None else {k: precision}

    def next_safer(
        self, than: OperatingPoint, batch: int, goal: Mapping[int, float]
    ) -> OperatingPoint | None:
        """The cheapest proven point, or one that was measured to miss at most half as often.

        Misses are added up over the ks of `goal`, by the lower bounds. None: nothing is safer.
        """
        missed = _missed(than, goal)
        for point in self._cheapest[batch]:
            if not than.proven and (point.proven or _missed(point, goal) < HALF * missed):
                return point
        return None
