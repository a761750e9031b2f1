import platform
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from logitsieve.api.results import ArrayLike, Float32, TopK

CALLS = 1200  # most timed calls
REPEATS = 3  # calls with the same batch
LEAST_CALLS = 2  # fewest timed calls
LIMIT_NS = 250_000_000
TIMED_K = 5
BATCHES = (1, 2, 4, 8, 16, 64)

Clock = Callable[[], int]  # in ns


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
    clock: Clock = perf_counter_ns,
) -> float:
    head.warm()
    return least_us(lambda rows: head.topk(rows, k), hidden_states, batch, calls, limit_ns, clock)


def least_us(
    call: Callable[[Float32], object],
    hidden_states: Float32,
    batch: int,
    calls: int = CALLS,
    limit_ns: int = LIMIT_NS,
    clock: Clock = perf_counter_ns,
) -> float:
    """Return microseconds a row: the mean over batches of `batch` rows from `hidden_states` [N, D].

    Each batch counts by the fastest of its REPEATS calls, since load only adds time. If `calls`
    does not suffice for all batches, those used are spread over `hidden_states`; rows are repeated
    if there are too few. After `limit_ns` no call begins, except the first LEAST_CALLS. With the
    clock `time.thread_time_ns`, calls that use one thread take as long on a busy machine.
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
        start = clock()
        call(batches[number])
        took = clock() - start
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
