"""The time by which the computation of a thread has to end, for its steps that wait for others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from time import monotonic

_thread = local()


@contextmanager
def ending_by(deadline: float | None) -> Iterator[None]:
    """Let what this thread computes here end by a time of `monotonic`, or at any time."""
    before = getattr(_thread, "deadline", None)
    _thread.deadline = deadline
    try:
        yield
    finally:
        _thread.deadline = before


def time_left() -> float | None:
    """Seconds that are left, 0 or less where none are; None without a deadline."""
    deadline: float | None = getattr(_thread, "deadline", None)
    return None if deadline is None else deadline - monotonic()
