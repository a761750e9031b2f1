"""Faults raised at a function of the server, one after the other, until a scene ends without."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FrameType


class Fault(MemoryError):
    """Raised where a test says."""


class Walk:
    """A trace function: raises a Fault at the `number`-th entry or resumption that `walked` names.

    `walked(frame)` tells whether to count a frame that is entered or resumed.
    """

    def __init__(self, number: int, walked: Callable[[FrameType], bool]) -> None:
        self._left, self._walked, self._lock = number, walked, threading.Lock()
        self.at = ""

    def end(self) -> None:
        """Let threads that are still traced go on."""
        with self._lock:
            self._left = 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or not self._walked(frame):
            return
        with self._lock:
            self._left -= 1
            if self._left:  # below 0: it has struck, or the scene is over
                return
        self.at = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        raise Fault(self.at)
