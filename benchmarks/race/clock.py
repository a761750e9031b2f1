"""Interleaved timing of many operating points: each meets the same busy and quiet moments.

As benchmarks.timing, but a method is set to its knobs before its turn, and turns are short enough
for hundreds of points.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import NamedTuple

from benchmarks.race.methods import Knobs, Method
from benchmarks.timing import COLD_CALLS, batches_of, cold_ns
from logitsieve.api.results import Float32

LEAST_ROUNDS, MOST_ROUNDS = 3, 9
MODE_NS = 120_000_000_000  # of turns in one mode; with fewer rounds where that is not enough
TURN_NS = 8_000_000
CHECK_EVERY_ROWS = 16  # between two looks at the clock
CLEARING_NS = 5_000_000  # about, before a cold call


class Mode(NamedTuple):
    """Rows per call and threads, and whether other work passes through the cache between calls."""

    batch: int
    threads: int
    cold: bool = False

    @property
    def label(self) -> str:
        return f"B={self.batch} threads={self.threads}"


class Engine(NamedTuple):
    """A method at one operating point."""

    method: Method
    knobs: Knobs


def time_points(
    points: Sequence[Engine],
    hidden: Float32,
    mode: Mode,
    k: int,
    progress: Callable[[str, int, int], None],
) -> list[dict[str, float]]:
    """Microseconds a row of each point: median over rounds of a turn's mean, least and most."""
    batches = batches_of(hidden, mode.batch)
    calls = [call_ns(point, batches, mode, k) for point in points]
    turns = [_cold_calls(call) * (call + CLEARING_NS) if mode.cold else call for call in calls]
    share = sum(max(turn, TURN_NS) for turn in turns)
    rounds = int(min(MOST_ROUNDS, max(LEAST_ROUNDS, MODE_NS // share)))
    means: list[list[float]] = [[] for _ in points]
    stage = f"time {'cold ' * mode.cold}{mode.label}"
    for number in range(rounds):
        for place, (method, knobs) in enumerate(points):
            method.set_knobs(mode.threads, knobs)
            turn = _cold_turn if mode.cold else _warm_turn
            spent = turn(method, batches, k, calls[place], number)
            means[place].append(spent / mode.batch / 1000)
            progress(stage, number * len(points) + place + 1, rounds * len(points))
    return [
        {"median": statistics.median(found), "least": min(found), "most": max(found)}
        for found in means
    ]


def _warm_turn(
    method: Method, batches: Sequence[Float32], k: int, call_ns: int, number: int
) -> float:
    """Nanoseconds a call, the mean of a turn."""
    batch = len(batches[0])
    if call_ns < TURN_NS:
        method.topk(batches[number % len(batches)], k)  # its arrays come to the cache
    stride = max(1, min(CHECK_EVERY_ROWS // batch, TURN_NS // call_ns))
    done, at = 0, number * 1009
    start = perf_counter_ns()
    while (elapsed := perf_counter_ns() - start) < TURN_NS:
        for _ in range(stride):
            method.topk(batches[at % len(batches)], k)
            at += 1
        done += stride
    return elapsed / done


def _cold_turn(
    method: Method, batches: Sequence[Float32], k: int, call_ns: int, number: int
) -> float:
    """Nanoseconds a call, the mean of a few calls with other work before each."""
    places = range(number * 1009, number * 1009 + _cold_calls(call_ns))
    return cold_ns(method.topk, (batches[place % len(batches)] for place in places), k)


def _cold_calls(call_ns: int) -> int:
    """Calls of a cold turn: one where a call takes long."""
    return max(1, min(COLD_CALLS, TURN_NS // call_ns))


def call_ns(point: Engine, batches: Sequence[Float32], mode: Mode, k: int) -> int:
    """Nanoseconds of the second call, about."""
    point.method.set_knobs(mode.threads, point.knobs)
    point.method.topk(batches[0], k)
    start = perf_counter_ns()
    point.method.topk(batches[-1], k)
    return max(1, perf_counter_ns() - start)
