import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from logitsieve.api.decoder import Engine
from logitsieve.api.keywords import Purpose
from logitsieve.api.requests import Request
from logitsieve.server.config import ANSWER_BYTES
from logitsieve.utils.deadline import Timings
from logitsieve.v1.rpcs import Reply

BATCH_ROWS = 64  # larger batches gain little, so only cheap rows make them, up to BATCH_US
BATCH_US = 2000.0
BUCKET_ROWS = 256  # for a GPU or other processes, where a batch costs little more than a row
PART_US = 50_000.0  # most time of a batch's draws and single logits, as it cannot be interrupted

INLINE_US = 100.0  # shorter work stays on the loop: a hop to a thread and back takes 50-80 us
OWN_US = INLINE_US / 4
WORST = 20.0  # work that took longer, as a multiple of its estimate, was interrupted
FORGIVEN = 0.99  # decay of a slow engine's mean, so that it is tried on the loop again
FRESH = 0.2  # weight of the last value in a RunningMean

ALL = slice(None)

Computed = tuple[Reply, int, int]


class NamedEngine(Engine, Protocol):
    """A head at its knobs over an index or shards. Thread-safe. `normalizer` may be "" for none."""

    model: str
    version: str
    digest: str
    head: str
    normalizer: str
    width: float

    @property
    def knobs(self) -> Mapping[str, float]: ...


class RunningMean:
    value = 0.0

    def add(self, value: float) -> None:
        self.value += (FRESH if self.value else 1.0) * (value - self.value)


class Pace:
    """An engine's time divided by its estimate, in the pool and on the event loop."""

    def __init__(self) -> None:
        self.pool, self.loop = RunningMean(), RunningMean()
        self._last = 0.0

    def fits_loop(self, estimate_us: float) -> bool:
        if estimate_us >= INLINE_US:
            return False
        fits = max(estimate_us, OWN_US) * self.loop.value < INLINE_US
        if not fits:
            self.loop.value *= FORGIVEN
        return fits

    def add_on_loop(self, took_us: float, estimate_us: float) -> None:
        """Add a computation; a single slow one does not count, as it was interrupted."""
        over = min(took_us / max(estimate_us, OWN_US), WORST)
        self.loop.add(min(over, self._last))
        self._last = over


class PreparedRequest(NamedTuple):
    """A request whose sizes have been checked. `read` checks its values, and returns it."""

    rows: int
    k: int
    logits: int  # computed one by one, besides those of the head and of log Z
    draws: int
    purpose: Purpose
    read: Callable[[], Request[Any]]
    independent: np.ndarray | None = None
    together: int = 1  # rows of a group of beams, which stay in one batch

    def answer(self, engine: Engine, rows: slice) -> Reply:
        request = self.read()
        reply: Reply = engine.answer(request if rows is ALL else request.part(rows))
        return reply

    @property
    def reply_bytes(self) -> int:
        return ANSWER_BYTES * (self.rows * self.k + self.logits + self.draws)


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request that waits or is being computed. Times are those of `monotonic`."""

    engine: NamedEngine
    request: PreparedRequest
    estimate_us: float
    pace: RunningMean  # its engine's time divided by estimates; 0 until measured
    arrived_ns: int
    deadline: float | None
    future: asyncio.Future[Computed]
    offloaded: bool = False
    extra_us: float = 0.0
    start: int = 0  # computed rows end here
    stop: int = 0  # rows of the current batch end here
    timings: Timings = field(default_factory=list)
    parts: list[Reply] = field(default_factory=list)
    queue_ns: int = 0
    device_ns: int = 0
    ready_at: float = 0.0  # until then it waits for others to join it
    us_per_row: float = field(init=False)
    batch_rows: int = field(init=False)
    paced_us: float = field(init=False)  # a row's time, by the pace on arrival
    key: tuple[NamedEngine, int, int] | None = field(init=False)  # equal keys may share a batch

    def __post_init__(self) -> None:
        hidden_states = self.request.independent
        self.us_per_row = self.estimate_us / self.request.rows
        self.paced_us = self.us_per_row * self.pace.value
        self.key = (
            None if hidden_states is None else (self.engine, self.request.k, hidden_states.shape[1])
        )
        most, own = max(BATCH_ROWS, int(BATCH_US / max(self.us_per_row, 1e-3))), self.extra_us
        if own:
            most = min(most, int(PART_US * self.request.rows / own))
        together = self.request.together
        self.batch_rows = BUCKET_ROWS if self.offloaded else max(most // together, 1) * together

    @property
    def left(self) -> int:
        return self.request.rows - self.start

    @property
    def whole(self) -> bool:
        return self.stop - self.start == self.request.rows

    @property
    def part(self) -> slice:
        return ALL if self.whole else slice(self.start, self.stop)
