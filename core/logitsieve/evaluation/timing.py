"""Time a head's public methods, and name the processor."""

import platform
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from logitsieve.api.results import ArrayLike, Float32, TopK

CALLS = 1200  # timed at most
REPEATS = 3  # calls of one batch
LEAST_CALLS = 2  # timed at least
LIMIT_NS = 250_000_000  # no call begins after this
TIMED_K = 5  # answers a row
BATCHES = (1, 2, 4, 8, 16, 64)


class Timed(Protocol):
    def topk(self, hidden_states: ArrayLike, k: int) -> TopK: ...

    def warm(self) -> None: ...


def us_per_row(
    head: Timed,
    hidden_states: Float32,
    k: int,
    batch: int,
    calls: int = CALLS,
    limit_ns: int = LIMIT_NS,
) -> float:
    """Return microseconds a row of a head's `topk`: see `least_us`."""
    head.warm()
    return least_us(lambda rows: head.topk(rows, k), hidden_states, batch, calls, limit_ns)


def least_us(
    call: Callable[[Float32], object],
    hidden_states: Float32,
    batch: int,
    calls: int = CALLS,
    limit_ns: int = LIMIT_NS,
) -> float:
    """Return microseconds a row: the mean over batches of `batch` rows from `hidden_states` [N, D].

    A batch counts by the least of its REPEATS calls, since load only adds. If `calls` allows only
    some batches, they are spread over `hidden_states`; too few rows are repeated. After `limit_ns`
    only the first LEAST_CALLS calls begin.
    """
    if len(hidden_states) < batch:
        hidden_states = np.resize(hidden_states, (batch, hidden_states.shape[1]))
    batches = [
        hidden_states[start : start + batch]
        for start in range(0, len(hidden_states) - batch + 1, batch)
    ]
    batches = batches[:: -(-len(batches) // max(1, calls // REPEATS))]
    call(batches[0])
    least: dict[int, int] = {}
    done = spent = 0
    while done < calls and (done < LEAST_CALLS or spent < limit_ns):
        number = done % len(batches)
        start = perf_counter_ns()
        call(batches[number])
        took = perf_counter_ns() - start
        least[number] = min(took, least.get(number, took))
        done, spent = done + 1, spent + took
    return statistics.fmean(least.values()) / batch / 1000


@cache
def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
