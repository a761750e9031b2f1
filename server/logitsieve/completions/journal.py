"""Shared memory and a header by which the processes of the port and the engine know requests."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from time import monotonic
from typing import Any, NamedTuple, Self, TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")

ENGINE, SHORT, LONG, GRAMMARS = range(4)  # places, each for one thread of the engine's process
MOST = 64  # requests at a place: the engine's sequences
TICKET_HEADER = "x-logitsieve-ticket"
GONE = 499  # status: the client has closed its connection
MOST_JSON = 16 << 20  # bytes; while they are parsed, other requests wait


class Journal:
    """Numbers, from 1 on, of the requests that are worked on, to be read after a crash."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._numbers = context.RawArray("q", (GRAMMARS + 1) * MOST)
        self._beats = context.RawValue("q", 0)

    def beat(self) -> None:

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
        found = {number for number in self._numbers if number}
        self._numbers[:] = [0] * len(self._numbers)
        return found


class Ticket(NamedTuple):
    number: int
    size: int
    until: float

    @classmethod
    def of(cls, request: Request, timeout_s: float) -> Self:
        number, _, left = request.headers.get(TICKET_HEADER, "").partition(" ")
        size = int(request.headers.get("content-length", MOST_JSON))
        return cls(int(number or 0), size, monotonic() + min(float(left or timeout_s), timeout_s))

    def header(self) -> str:
        return f"{self.number} {max(self.until - monotonic(), 0):.3f}"


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns. ClientDisconnect cancels it if the client goes away."""
    gone, made = asyncio.ensure_future(_client_gone(request)), asyncio.ensure_future(work)
    try:
        await asyncio.wait((gone, made), return_when=asyncio.FIRST_COMPLETED)
        if not made.done():
            raise ClientDisconnect
        return await made
    finally:
        gone.cancel()
        made.cancel()


async def _client_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
