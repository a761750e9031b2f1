"""Each thread's deadline for its current computation, and the record of its calls to others."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import local
from time import monotonic

Timings = list[tuple[str, int, int]]  # (name of a call, start, end) by perf_counter_ns


class _Thread(local):
    deadline: float | None = None
    timings: Timings | None = None


_thread = _Thread()


def ending_by(deadline: float | None) -> AbstractContextManager[None]:
    return _within("deadline", deadline)


def time_left() -> float | None:
    deadline = _thread.deadline
    return None if deadline is None else deadline - monotonic()


def recording(timings: Timings) -> AbstractContextManager[None]:
    return _within("timings", timings)


def current_timings() -> Timings | None:
    return _thread.timings


@contextmanager
def _within(name: str, value: object) -> Iterator[None]:
    before = getattr(_thread, name)
    setattr(_thread, name, value)
    try:
        yield
    finally:
        setattr(_thread, name, before)
