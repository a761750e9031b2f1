"""The deadline of a computation, and the times that it notes, by thread."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import local
from time import monotonic

Timings = list[tuple[str, int, int]]  # (call to others, start, end), ns of perf_counter_ns


class _Thread(local):
    deadline: float | None = None
    timings: Timings | None = None


_thread = _Thread()


def ending_by(deadline: float | None) -> AbstractContextManager[None]:
    """Give this thread a deadline (a time of `monotonic`), or none, inside a block."""
    return _within("deadline", deadline)


def time_left() -> float | None:
    """Return the seconds left, possibly negative; None without a deadline."""
    deadline = _thread.deadline
    return None if deadline is None else deadline - monotonic()


def noting(timings: Timings) -> AbstractContextManager[None]:
    """Let computations of this thread add to `timings` inside a block."""
    return _within("timings", timings)


def noted() -> Timings | None:
    """Return the list to add to; None if nobody asks for it."""
    return _thread.timings


@contextmanager
def _within(name: str, value: object) -> Iterator[None]:
    before = getattr(_thread, name)
    setattr(_thread, name, value)
    try:
        yield
    finally:
        setattr(_thread, name, before)
