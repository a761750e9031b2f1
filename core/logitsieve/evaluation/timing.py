"""How fast a head is, through its public `topk`."""

from __future__ import annotations

import statistics
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from logitsieve.types.results import ArrayLike, Float32, TopK

CALLS = 400  # timed at most
LEAST_CALLS = 5  # timed at least, however long one takes
LIMIT_NS = 500_000_000  # no further call is begun after this
TIMED_K = 5  # answers a row wherever an index's points are timed
BATCHES = (1, 8, 64)  # and rows a call


class Timed(Protocol):
    """A head."""

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        """The k best ids of each row."""
        ...

    def warm(self) -> None:
        """Compile every kernel."""
        ...


def us_per_row(
    head: Timed,
    hidden: Float32,
    k: int,
    batch: int,
    calls: int = CALLS,
    limit_ns: int = LIMIT_NS,
) -> float:
    """Microseconds a row: the median over calls of `batch` rows each, taken from `hidden` [N, D].

    At most `calls` calls, and none is begun after `limit_ns` but for the first LEAST_CALLS.
    More batches than calls are spread over `hidden`; fewer rows than `batch` are repeated.
    """
    if len(hidden) < batch:
        hidden = np.resize(hidden, (batch, hidden.shape[1]))
    batches = [hidden[start : start + batch] for start in range(0, len(hidden) - batch + 1, batch)]
    batches = batches[:: max(1, len(batches) // calls)]
    head.warm()
    head.topk(batches[0], k)
    times: list[int] = []
    while len(times) < calls and (len(times) < LEAST_CALLS or sum(times) < limit_ns):
        rows = batches[len(times) % len(batches)]
        start = perf_counter_ns()
        head.topk(rows, k)
        times.append(perf_counter_ns() - start)
    return statistics.median(times) / batch / 1000
