"""Counting who uses something that is closed when nobody does."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Lock
from types import TracebackType

from logitsieve.api.errors import Unavailable


class UseCount:
    """`with leases:` is one use, which any thread may begin.

    After `end`, `idle` is done when nobody is left; from then on `with` raises Unavailable.
    """

    def __init__(self, of: str) -> None:
        self._of = of
        self._lock = Lock()
        self._held = 0
        self.ended = False
        self.idle: Future[None] = Future()
        self.idle.set_running_or_notify_cancel()  # who stops waiting for it does not cancel it

    def end(self) -> None:
        """Become idle once nobody is left."""
        with self._lock:
            first, self.ended = not self.ended, True
            idle = first and not self._held
        if idle:
            self.idle.set_result(None)

    def __enter__(self) -> None:
        with self._lock:
            if self.ended and not self._held:
                raise Unavailable(f"model: {self._of} is being unloaded", "model")
            self._held += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._held -= 1
            idle = self.ended and not self._held
        if idle:
            self.idle.set_result(None)
