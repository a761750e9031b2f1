"""The port's process and the engine's tell each other of requests by memory and by a header."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from time import monotonic
from typing import NamedTuple, Self

from starlette.requests import Request

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


TICKET_HEADER = "x-logitsieve-ticket"
GONE = 499  # status: the client has closed its connection
MOST_JSON = 16 << 20  # bytes of a request: reading them holds up all others


class Ticket(NamedTuple):
    number: int  # 0: none is known
    size: int  # bytes of the body
    until: float  # of `monotonic`

    @classmethod
    def of(cls, request: Request, timeout_s: float) -> Self:
        number, _, left = request.headers.get(TICKET_HEADER, "").partition(" ")
        size = int(request.headers.get("content-length", MOST_JSON))
        return cls(int(number or 0), size, monotonic() + min(float(left or timeout_s), timeout_s))

    def header(self) -> str:
        return f"{self.number} {max(self.until - monotonic(), 0):.3f}"


async def client_gone(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
