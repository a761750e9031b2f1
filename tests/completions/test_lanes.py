"""Long texts keep no short ones waiting, and have their requests' time."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from time import monotonic

import pytest

from logitsieve.api.errors import DeadlineExceeded, Overloaded, Unavailable
from logitsieve.completions.journal import Journal, Ticket
from logitsieve.completions.lanes import MOST_SHORT, MOST_WAITING, Lanes
from tests.server.running import WAIT_S


def ticket(number: int, size: int = 1, left_s: float = WAIT_S) -> Ticket:
    return Ticket(number, size, monotonic() + left_s)


@contextmanager
def opened(journal: Journal, stuck: list[str] | None = None) -> Iterator[tuple[Lanes, Event]]:
    """Lanes, and an event for which work may wait."""
    told = [] if stuck is None else stuck
    lanes, done = Lanes(journal, lambda: told.append("stuck"), grace_s=0.0), Event()
    try:
        yield lanes, done
    finally:
        done.set()
        lanes.close()


@pytest.mark.parametrize("grammar", [False, True], ids=["text", "grammar"])
async def test_a_long_text_or_a_grammar_keeps_no_short_text_waiting(grammar: bool) -> None:
    journal = Journal()
    with opened(journal) as (lanes, done):
        begun = Event()

        def work() -> bool:
            begun.set()
            return done.wait()

        long = asyncio.ensure_future(
            lanes.run(ticket(7, MOST_SHORT + (not grammar)), work, grammar=grammar)
        )
        while not begun.is_set():
            await asyncio.sleep(0)
        assert await lanes.run(ticket(8), lambda: "short") == "short"
        assert journal.found() == {7}
        done.set()
        assert await long
        with pytest.raises(ZeroDivisionError):
            await lanes.run(ticket(9), lambda: 1 / 0)
        with pytest.raises(TimeoutError, match="its own"):
            await lanes.run(ticket(10), _time_out)


def _time_out() -> None:
    raise TimeoutError("its own")


async def test_a_text_that_is_read_after_its_time_is_told() -> None:
    stuck = list[str]()
    with opened(Journal(), stuck) as (lanes, done):
        with pytest.raises(DeadlineExceeded):
            await lanes.run(ticket(1, left_s=0.01), done.wait)
        while not stuck:
            await asyncio.sleep(0)
        with pytest.raises(DeadlineExceeded):  # it has not begun
            await lanes.run(ticket(2, left_s=0.01), lambda: stuck.append("ran"))
    assert stuck == ["stuck"]


async def test_few_texts_wait() -> None:
    with opened(Journal()) as (lanes, done):
        waiting = [
            asyncio.ensure_future(lanes.run(ticket(1), done.wait)) for _ in range(MOST_WAITING)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="wait to be read"):
            await lanes.run(ticket(2), done.wait)
        done.set()
        assert all(await asyncio.gather(*waiting))


async def test_texts_that_wait_when_the_server_stops_are_told() -> None:
    with opened(Journal()) as (lanes, done):
        begun = Event()

        def work() -> bool:
            begun.set()
            return done.wait()

        read, waiting = (asyncio.ensure_future(lanes.run(ticket(1), work)) for _ in range(2))
        while not begun.is_set():
            await asyncio.sleep(0)
        lanes.close()
        with pytest.raises(Unavailable, match="stopping"):
            await waiting
        with pytest.raises(Unavailable, match="stopping"):
            await lanes.run(ticket(2), work)
        done.set()
        assert await read
