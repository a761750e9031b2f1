"""Interleaved timing: every contender meets the same busy and quiet moments of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

import numpy as np

Search = Callable[[np.ndarray, int], object]  # (hidden [B, D], k) -> an answer of any form

ROUNDS = 15
ROUND_NS = 30_000_000  # one contender's share of a round
CHUNK_ROWS = 256  # rows between two looks at the clock


def batches_of(hidden: np.ndarray, batch: int) -> list[np.ndarray]:
    """Consecutive batches, each an array of its own as a decoder would hand over."""
    return [hidden[i : i + batch].copy() for i in range(0, len(hidden) - batch + 1, batch)]


def race(
    contenders: Mapping[str, Search], batches: Sequence[np.ndarray], k: int
) -> dict[str, dict[str, float]]:
    """Microseconds a row: the median over rounds of the mean of a round, and the least and most.

    In each round every contender answers other batches for about 30 ms, one call each.
    """
    rows = len(batches[0])
    size = max(1, CHUNK_ROWS // rows)
    chunks = [batches[i : i + size] for i in range(0, len(batches), size)]
    means: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call(batches[0], k)
    for number in range(ROUNDS):
        for name, call in contenders.items():
            done, place = 0, number * 7
            start = perf_counter_ns()
            while (elapsed := perf_counter_ns() - start) < ROUND_NS:
                chunk = chunks[place % len(chunks)]
                for batch in chunk:
                    call(batch, k)
                done, place = done + len(chunk), place + 1
            means[name].append(elapsed / done / rows / 1000)
    return {
        name: {"median": statistics.median(found), "least": min(found), "most": max(found)}
        for name, found in means.items()
    }
