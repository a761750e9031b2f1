"""The requests that an engine works on, and its heartbeat, in memory that outlives its process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context

ENGINE, SHORT, LONG, GRAMMARS = range(4)  # places, each written by one thread
MOST = 64  # requests of a place: the engine's sequences


class Journal:
    """Numbers of requests, from 1 on; whoever is `found` after a crash was worked on."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._numbers = context.RawArray("q", (GRAMMARS + 1) * MOST)
        self._beats = context.RawValue("q", 0)

    def beat(self) -> None:
        """Say that the engine goes on."""
        self._beats.value += 1

    @property
    def beats(self) -> int:
        return int(self._beats.value)

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
