"""Memory that kernels mark things in: made once for each thread, left as it was found.

What would be O(V) work in every step is done once. It is no part of any state, and a copy of a head
gets its own.
"""

from __future__ import annotations

from threading import local
from typing import Any

import numpy as np


class Scratch:
    """Arrays of zeros by name, for each calling thread."""

    def __init__(self) -> None:
        self._mine = local()

    def zeros(self, name: str, size: int, dtype: type[np.generic]) -> np.ndarray:
        """The thread's own; users leave it zero, or do not mind what it holds."""
        held: dict[str, Any] = self._mine.__dict__
        if name not in held or held[name].size != size:
            held[name] = np.zeros(size, dtype)
        array: np.ndarray = held[name]
        return array

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()
