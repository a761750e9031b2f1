"""The raw results that tables are made of: races by their points."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from benchmarks import raw
from benchmarks.race.table import ASKED, FLOAT32, chosen_by, narrowest

ONE, BATCH = "B=1 threads=1", "B=64 threads=1"
Precision = tuple[float, float]  # the least P@1 and P@5
ANY, HIGH, LOW = (0.0, 0.0), (0.998, 0.99), (ASKED, 0.0)
WARM, COLD = "us_per_row", "cold_us_per_row"
GROWTH = "race/growth"


@cache
def load(name: str) -> Any:
    """What `benchmarks/results/<name>.json.gz` holds."""
    return raw.read(raw.RESULTS / f"{name}.json.gz")


def present(name: str) -> bool:
    return (raw.RESULTS / f"{name}.json.gz").exists()


class Time(NamedTuple):
    """Microseconds a row of one setting of a method, and its precision."""

    method: str
    us: float
    p1: float
    p5: float


class Race:
    """The points of one dataset."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results
        self.vocab_size: int = results["vocab_size"]
        self.dim: int = results["dim"]

    @property
    def methods(self) -> set[str]:
        return {point["method"] for point in self.results["points"]}

    def fastest(
        self,
        methods: Callable[[str], bool],
        precise: Precision = ANY,
        mode: str = ONE,
        field: str = WARM,
    ) -> Time | None:
        """The fastest setting with that precision; None where none was timed or has it."""
        p1, p5 = precise
        times = [
            Time(point["method"], point[field][mode]["median"], point["p1"], point["p5"])
            for point in self.results["points"]
            if methods(point["method"])
            and chosen_by(point)["p1"] >= p1
            and chosen_by(point)["p5"] >= p5
            and mode in point.get(field, {})
        ]
        return min(times, key=lambda time: time.us, default=None)

    def exact(self, mode: str = ONE, field: str = WARM) -> Time | None:
        """The best exact float32, which speed-ups are over."""
        return self.fastest(lambda name: name in FLOAT32, mode=mode, field=field)

    def narrow(self, field: str = WARM) -> Time | None:
        """The fastest quantised head that is precise enough, one row a call."""
        if (point := narrowest(self.results, ONE, field)) is None:
            return None
        return Time(point["method"], point[field][ONE]["median"], point["p1"], point["p5"])

    def head(self, name: str, precise: Precision = ANY, mode: str = ONE) -> Time | None:
        """The head's fastest setting with that precision."""
        return self.fastest(f"logitsieve {name}".__eq__, precise, mode)

    def point(self, method: str) -> Any:
        """The first setting of a method."""
        return next(point for point in self.results["points"] if point["method"] == method)


def race(data: str) -> Race:
    return Race(load(f"race/{data}"))
