"""Threads for kernels, which release the GIL."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from statistics import median
from time import perf_counter_ns, sleep

ROWS_A_SLICE = 16  # fewer rows take less time than their hand-over to a thread
RESTED_S, HAND_OVERS = 0.005, 5  # the pause between two tokens of a decoder; measurements


@cache  # emptied in a forked child, which lacks the threads
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="logitsieve")


os.register_at_fork(after_in_child=_threads.cache_clear)


def run_slices(call: Callable[[int, int], int], rows: int, threads: int) -> list[int]:
    slices = max(1, min(threads, rows // ROWS_A_SLICE))
    if slices == 1:
        return [call(0, rows)]
    bounds = [rows * i // slices for i in range(slices + 1)]
    return run_all([partial(call, *ends) for ends in pairwise(bounds)], threads)


def run_all(calls: Sequence[Callable[[], int]], threads: int) -> list[int]:
    waiting = [_threads(threads).submit(call) for call in calls[1:]]
    return [calls[0](), *(future.result() for future in waiting)]


@cache
def hand_over_ns() -> float:
    """Return the median time of an empty call on a thread that has to wake, measured once."""
    times = []
    for _ in range(HAND_OVERS):
        sleep(RESTED_S)
        begun = perf_counter_ns()
        run_all([int, int], 2)
        times.append(perf_counter_ns() - begun)
    return median(times)
