"""Interleaved timing: every contender meets the same busy and quiet moments of the machine."""

import mmap
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from time import perf_counter_ns
from typing import NamedTuple, TypeAlias

import numpy as np

from benchmarks.machine import read_all
from logitsieve.api.results import Float32
from logitsieve.utils.options import Progress, no_progress

Search: TypeAlias = Callable[
    [Float32, int], object
]  # (hidden_states [B, D], k) -> an answer of any form
Point: TypeAlias = Callable[[int], Search]  # makes itself ready for so many threads

LEAST_ROUNDS, MOST_ROUNDS = 3, 9
MODE_NS = 120_000_000_000  # of turns in one mode; with fewer rounds where that is not enough
TURN_NS = 8_000_000
CHECK_EVERY_ROWS = 16  # between two looks at the clock
CLEARED_BYTES = 96_000_000  # that pass through the cache before a cold call
CLEARING_NS = 5_000_000  # about, before a cold call
COLD_CALLS = 6  # of a turn, at most


class Mode(NamedTuple):
    """Rows per call and threads, and whether other work passes through the cache between calls."""

    batch: int
    threads: int
    cold: bool = False

    @property
    def label(self) -> str:
        return f"B={self.batch} threads={self.threads}"


def batches_of(hidden_states: Float32, batch: int) -> list[Float32]:
    """Consecutive batches, each an array of its own as a decoder would hand over."""
    return [
        hidden_states[i : i + batch].copy() for i in range(0, len(hidden_states) - batch + 1, batch)
    ]


def race(
    contenders: Mapping[str, Search], hidden_states: Float32, batch: int, k: int
) -> dict[str, dict[str, float]]:
    """`time_points` of searches on one thread, by name."""
    points = [lambda _, search=search: search for search in contenders.values()]
    return dict(zip(contenders, time_points(points, hidden_states, Mode(batch, 1), k), strict=True))


def time_points(
    points: Sequence[Point],
    hidden_states: Float32,
    mode: Mode,
    k: int,
    progress: Progress = no_progress,
) -> list[dict[str, float]]:
    """Microseconds a row of each point: median over rounds of a turn's mean, least and most."""
    batches = batches_of(hidden_states, mode.batch)
    calls = [call_ns(point, batches, mode, k) for point in points]
    turns = [_cold_calls(call) * (call + CLEARING_NS) if mode.cold else call for call in calls]
    share = sum(max(turn, TURN_NS) for turn in turns)
    rounds = int(min(MOST_ROUNDS, max(LEAST_ROUNDS, MODE_NS // share)))
    means: list[list[float]] = [[] for _ in points]
    stage = f"time {'cold ' * mode.cold}{mode.label}"
    turn = _cold_turn if mode.cold else _warm_turn
    for number in range(rounds):
        for place, point in enumerate(points):
            spent = turn(point(mode.threads), batches, k, calls[place], number)
            means[place].append(spent / mode.batch / 1000)
            progress(stage, number * len(points) + place + 1, rounds * len(points))
    return list(map(spread, means))


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def call_ns(point: Point, batches: Sequence[Float32], mode: Mode, k: int) -> int:
    """Nanoseconds of the second call, about."""
    search = point(mode.threads)
    search(batches[0], k)
    start = perf_counter_ns()
    search(batches[-1], k)
    return max(1, perf_counter_ns() - start)


def _warm_turn(
    search: Search, batches: Sequence[Float32], k: int, call_ns: int, number: int
) -> float:
    """Nanoseconds a call, the mean of a turn."""
    batch = len(batches[0])
    if call_ns < TURN_NS:
        search(batches[number % len(batches)], k)  # its arrays come to the cache
    stride = max(1, min(CHECK_EVERY_ROWS // batch, TURN_NS // call_ns))
    done, at = 0, number * 1009
    start = perf_counter_ns()
    while (elapsed := perf_counter_ns() - start) < TURN_NS:
        for _ in range(stride):
            search(batches[at % len(batches)], k)
            at += 1
        done += stride
    return elapsed / done


def _cold_turn(
    search: Search, batches: Sequence[Float32], k: int, call_ns: int, number: int
) -> float:
    """Nanoseconds a call, the mean of a few, each after other work, which is not counted."""
    spent: list[int] = []
    for place in range(number * 1009, number * 1009 + _cold_calls(call_ns)):
        clear_cache()
        start = perf_counter_ns()
        search(batches[place % len(batches)], k)
        spent.append(perf_counter_ns() - start)
    return statistics.fmean(spent)


def _cold_calls(call_ns: int) -> int:
    """Calls of a cold turn: one where a call takes long."""
    return max(1, min(COLD_CALLS, TURN_NS // call_ns))


def clear_cache() -> None:
    """Read 96 MB of other memory, as a decoder's own model does between two calls."""
    read_all(_other_work(), 1)


@cache
def _other_work() -> np.ndarray:
    """Pages of 4 KiB, as most programs have: their addresses leave the TLB full as well."""
    pages = mmap.mmap(-1, CLEARED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    values = np.frombuffer(pages, np.float32)
    values.fill(1)
    return values
