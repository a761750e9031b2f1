"""Operating points: a head at one setting of its knobs, with its measured precision and times.

A point reaches a precision if its lower 95 % confidence bound does, so that luck on few contexts
does not count.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logitsieve.api.keywords import KnobValues

KS = (1, 5, 10)  # P@k is measured for these k; other k count as the next larger one
BEYOND = 0  # the class of k above 10, where only a proof reaches a precision

Setting = tuple[str, KnobValues]


def setting_of(head: str, knobs: Mapping[str, float]) -> Setting:
    return head, tuple(sorted(knobs.items()))


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatingPoint:
    """A measured setting of a head; B is the batch size."""

    head: str
    knobs: Mapping[str, float]
    max_error: float  # largest chance that a top k is wrong; 1 if unknown
    mean: Mapping[int, float]  # k -> P@k
    low: Mapping[int, float]  # k -> its lower 95 % bound
    us_per_row: Mapping[int, float]  # B -> microseconds a row; not empty
    mass_kept: float
    candidates: Mapping[int, float]  # B -> rows of W computed for a row
    step_low: float = 0.0  # lower 95 % bound of correct pairs in beam steps; 0 if not measured
    step_us: Mapping[int, float] = field(default_factory=dict)  # B -> the same for beam steps
    draw_us: Mapping[int, float] = field(default_factory=dict)  # B -> for the best ids of draws

    @property
    def proven(self) -> bool:
        return self.max_error == 0.0

    def us_at(self, rows: int) -> float:
        return _at(self.us_per_row, rows)

    def candidates_at(self, rows: int) -> float:
        return _at(self.candidates, rows)

    def step_us_at(self, rows: int) -> float:
        return _at(self.step_us, rows)

    def draw_us_at(self, rows: int) -> float:
        return _at(self.draw_us or self.us_per_row, rows)

    def meets(self, precision: float, k: int) -> bool:
        return self.proven or (precision < 1 and self.low.get(k, 0.0) >= precision)

    @property
    def setting(self) -> Setting:
        return setting_of(self.head, self.knobs)

    @property
    def label(self) -> str:
        return " ".join([self.head, *(f"{name}={value:g}" for name, value in self.knobs.items())])


def read_points(entries: Iterable[Mapping[str, Any]]) -> tuple[OperatingPoint, ...]:
    settings: dict[Setting, list[Mapping[str, Any]]] = {}
    for entry in entries:
        setting = setting_of(entry["head"]["name"], entry["head"]["knobs"])
        settings.setdefault(setting, []).append(entry)
    return tuple(_point(same) for same in settings.values())


def _point(entries: Sequence[Mapping[str, Any]]) -> OperatingPoint:
    one = entries[0]
    return OperatingPoint(
        head=one["head"]["name"],
        knobs=dict(one["head"]["knobs"]),
        max_error=one["max_error"],
        mean={int(k): precision["mean"] for k, precision in one["precision"].items()},
        low={int(k): precision["low"] for k, precision in one["precision"].items()},
        us_per_row={entry["rows"]: entry["us_per_row"] for entry in entries},
        mass_kept=one["mass_kept"],
        candidates={entry["rows"]: entry["candidates"] for entry in entries},
        step_low=one.get("steps", {}).get("low", 0.0),
        step_us={e["rows"]: e["steps"]["us_per_row"] for e in entries if "steps" in e},
        draw_us={e["rows"]: e["draw_us"] for e in entries if "draw_us" in e},
    )


def read_target(config: Mapping[str, Any]) -> dict[int, float]:
    target = config.get("target_precision")
    if not isinstance(target, Mapping):
        return {}
    targets = {k: target.get(f"p{k}") for k in KS}
    return {k: float(p) for k, p in targets.items() if isinstance(p, (int, float)) and 0 < p <= 1}


def k_class(k: int) -> int:
    return next((each for each in KS if k <= each), BEYOND)


def nearest(batches: Sequence[int], rows: int) -> int:
    """Return the one of ascending `batches` nearest to `rows` by ratio, or the smaller of two."""
    place = bisect_left(batches, rows)
    if place == 0 or place == len(batches):
        return batches[min(place, len(batches) - 1)]
    below, above = batches[place - 1], batches[place]
    return below if rows * rows <= below * above else above


def _at(by_batch: Mapping[int, float], rows: int) -> float:
    return by_batch[nearest(sorted(by_batch), rows)]


def undominated(points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    """Return the points that no other matches or beats in all times and precisions.

    These include times of draws, and times and precisions of beam steps.
    """
    best: list[OperatingPoint] = []
    for point in points:
        if any(_dominates(other, point) for other in best):
            continue
        best = [other for other in best if not _dominates(point, other)] + [point]
    return best


def _dominates(one: OperatingPoint, other: OperatingPoint) -> bool:
    # A proof from fewer rows stays, as AUTO prefers it to one that is hardly faster.
    promised = one.max_error <= other.max_error
    if not promised or (other.proven and not _computes_less(one, other)):
        return False
    return (
        _as_fast(one.us_per_row, other.us_per_row)
        and all(one.proven or one.low.get(k, 0.0) >= low for k, low in other.low.items())
        and _as_fast(one.step_us, other.step_us)
        and _as_fast(one.draw_us, other.draw_us)
        and one.step_low >= other.step_low
    )


def _as_fast(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    return all(batch in one and one[batch] <= us for batch, us in other.items())


def _computes_less(one: OperatingPoint, other: OperatingPoint) -> bool:
    return all(one.candidates_at(batch) <= rows for batch, rows in other.candidates.items())
