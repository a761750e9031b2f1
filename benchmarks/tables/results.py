"""The raw results that tables are made of: races by their points, and tables that were kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from benchmarks import raw
from benchmarks.race.table import ASKED, FLOAT32, narrowest

ONE, BATCH = "B=1 threads=1", "B=64 threads=1"
Precision = tuple[float, float]  # the least P@1 and P@5
ANY, HIGH, LOW = (0.0, 0.0), (0.998, 0.99), (ASKED, 0.0)
WARM, COLD = "us_per_row", "cold_us_per_row"
GROWTH = "race/growth"
_noting: list[set[str]] = []


@contextmanager
def noted() -> Iterator[set[str]]:
    """The names of the raw files that are read inside."""
    _noting.append(set())
    yield _noting[-1]
    _noting.pop()


@cache
def _load(name: str) -> Any:
    return raw.read(raw.RESULTS / f"{name}.json.gz")


def load(name: str) -> Any:
    """What `benchmarks/results/<name>.json.gz` holds."""
    for names in _noting:
        names.add(name)
    return _load(name)


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
            and point["p1"] >= p1
            and point["p5"] >= p5
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


def of(time: Time | None) -> Time:
    """A time that a sentence needs."""
    if time is None:
        raise LookupError("not among the raw results")
    return time


Kept = list[dict[str, str]]


@cache
def _kept(name: str) -> list[Kept]:
    tables: list[Kept] = []
    text = (raw.RESULTS / f"{name}.md").read_text(encoding="utf-8")
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        lines = block.strip().split("\n")
        head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
        names = [name if head.count(name) == 1 else f"{name} {i}" for i, name in enumerate(head)]
        tables.append([dict(zip(names, row, strict=True)) for row in rows])
    return tables


def kept(name: str) -> list[Kept]:
    """The tables of `benchmarks/results/<name>.md`, of an experiment that ran once."""
    return _kept(name)
