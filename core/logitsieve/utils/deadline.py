"""A deadline per thread, for computations that wait for others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from time import monotonic

_thread = local()


@contextmanager
def ending_by(deadline: float | None) -> Iterator[None]:
    """Give this thread a deadline (a time of `monotonic`), or none, inside the block."""
    before = getattr(_thread, "deadline", None)
    _thread.deadline = deadline
    try:
        yield
    finally:
        _thread.deadline = before


def time_left() -> float | None:
    """Return the seconds left, possibly negative; None without a deadline."""
    deadline: float | None = getattr(_thread, "deadline", None)
    return None if deadline is None else deadline - monotonic()
