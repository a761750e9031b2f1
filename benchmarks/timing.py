"""Interleaved timing: every contender meets the same busy and quiet moments of the machine."""

from __future__ import annotations

import mmap
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from time import perf_counter_ns

import numpy as np

from benchmarks.machine import read_all

Search = Callable[[np.ndarray, int], object]  # (hidden [B, D], k) -> an answer of any form

ROUNDS = 15
ROUND_NS = 30_000_000  # one contender's share of a round
CHUNK_ROWS = 256  # rows between two looks at the clock
CLEARED_BYTES = 96_000_000  # that pass through the cache before a cold call
COLD_CALLS = 6  # of one contender in a round


def batches_of(hidden: np.ndarray, batch: int) -> list[np.ndarray]:
    """Consecutive batches, each an array of its own as a decoder would hand over."""
    return [hidden[i : i + batch].copy() for i in range(0, len(hidden) - batch + 1, batch)]


@cache
def _other_work() -> np.ndarray:
    """Pages of 4 KiB, as most programs have: their addresses leave the TLB full as well."""
    pages = mmap.mmap(-1, CLEARED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    values = np.frombuffer(pages, np.float32)
    values.fill(1)
    return values


def clear_cache() -> None:
    """Read 96 MB of other memory, as a decoder's own model does between two calls."""
    read_all(_other_work(), 1)


def cold_ns(search: Search, batches: Iterable[np.ndarray], k: int) -> float:
    """Nanoseconds a call, the mean over batches, each after other work; that is not counted."""
    spent: list[int] = []
    for batch in batches:
        clear_cache()
        start = perf_counter_ns()
        search(batch, k)
        spent.append(perf_counter_ns() - start)
    return statistics.fmean(spent)


def race(
    contenders: Mapping[str, Search], batches: Sequence[np.ndarray], k: int, *, cold: bool = False
) -> dict[str, dict[str, float]]:
    """Microseconds a row: the median over rounds of the mean of a round, and the least and most.

    In each round every contender answers other batches for about 30 ms, one call each; if `cold`,
    a few of them, with other work before each call.
    """
    rows = len(batches[0])
    size = COLD_CALLS if cold else max(1, CHUNK_ROWS // rows)
    chunks = [batches[i : i + size] for i in range(0, len(batches), size)]
    means: dict[str, list[float]] = {name: [] for name in contenders}
    for search in contenders.values():
        search(batches[0], k)
    for number in range(ROUNDS):
        for name, search in contenders.items():
            if cold:
                spent = cold_ns(search, chunks[number * 7 % len(chunks)], k)
            else:
                spent = _warm_ns(search, chunks, k, number * 7)
            means[name].append(spent / rows / 1000)
    return {
        name: {"median": statistics.median(found), "least": min(found), "most": max(found)}
        for name, found in means.items()
    }


def _warm_ns(search: Search, chunks: Sequence[Sequence[np.ndarray]], k: int, place: int) -> float:
    """Nanoseconds a call, the mean of about 30 ms of chunks from `place` on."""
    done, start = 0, perf_counter_ns()
    while (elapsed := perf_counter_ns() - start) < ROUND_NS:
        chunk = chunks[place % len(chunks)]
        for batch in chunk:
            search(batch, k)
        done, place = done + len(chunk), place + 1
    return elapsed / done
