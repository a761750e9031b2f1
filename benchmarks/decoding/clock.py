"""Microseconds of single calls, row by row: what a step of a decoder waits for.

Contenders take turns of a few rows, and all of them meet the same rows. Before its turn a contender
answers one row untimed, so that what it reads lies where a decoder that runs alone would have it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

BLOCK = 8  # rows of a turn

Call = Callable[[int], object]  # answers the row of that number


def time_rows(
    contenders: Mapping[str, Call], rows: int, progress: Callable[[str, int, int], None]
) -> dict[str, list[float]]:
    """Microseconds of each row's call, by contender."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for start in range(0, rows, BLOCK):
        for name, call in contenders.items():
            call(start - 1 if start else rows - 1)
            for row in range(start, min(start + BLOCK, rows)):
                begun = perf_counter_ns()
                call(row)
                found[name].append((perf_counter_ns() - begun) / 1000)
        progress("time", min(start + BLOCK, rows), rows)
    return found


def summary(times: Sequence[float]) -> dict[str, float]:
    """Median, mean and the ninth decile."""
    ordered = sorted(times)
    return {
        "median": statistics.median(ordered),
        "mean": statistics.fmean(ordered),
        "p90": ordered[int(0.9 * (len(ordered) - 1))],
    }
