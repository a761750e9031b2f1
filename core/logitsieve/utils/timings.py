"""Times of the calls that a computation makes to others, noted per thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

Timings = list[tuple[str, int, int]]  # (what, start, end) in nanoseconds of perf_counter_ns

_thread = local()


@contextmanager
def noting(timings: Timings) -> Iterator[None]:
    """Let computations of this thread add to `timings` inside the block."""
    before = noted()
    _thread.timings = timings
    try:
        yield
    finally:
        _thread.timings = before


def noted() -> Timings | None:
    """Return the list to add to; None if nobody asks for it."""
    timings: Timings | None = getattr(_thread, "timings", None)
    return timings
