"""The requests that an engine works on, in memory that outlives its process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context

ENGINE, SHORT, LONG = range(3)  # places, each written by one thread
MOST = 64  # requests of a place: the engine's sequences


class Journal:
    """Numbers of requests, from 1 on; whoever is `found` after a crash was worked on."""

    def __init__(self) -> None:
        self._numbers = get_context("spawn").RawArray("q", (LONG + 1) * MOST)

    @contextmanager
    def doing(self, place: int, requests: Sequence[int]) -> Iterator[None]:
        start = place * MOST
        self._numbers[start : start + len(requests)] = list(requests)
        try:
            yield
        finally:
            self._numbers[start : start + len(requests)] = [0] * len(requests)

    def found(self) -> set[int]:
        """Return the numbers, and forget them."""
        found = {number for number in self._numbers if number}
        self._numbers[:] = [0] * len(self._numbers)
        return found
