"""Requests on their way to an answer: read, then queued with what is known of their cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from logitsieve.api.results import TopKReply
from logitsieve.decoding.local_decoder import Answering
from logitsieve.v1.rpcs import Reply

# What heads gain by a batch they have gained by this size, the largest that is calibrated; cheap
# rows make larger batches, up to what a request behind them can well wait.
BATCH_ROWS = 64
BATCH_US = 2000.0

# A batch costs a GPU little more than one row does, and so does a call of other processes: whatever
# is estimated, a batch for these is as large as a GPU's largest bucket.
BUCKET_ROWS = 256

# How much of the pace is the last batch's.
FRESH = 0.2

# A reply, how long its request waited, and how long a GPU worked for it, in nanoseconds.
Computed = tuple[Reply, int, int]


class Point(Answering, Protocol):
    """What answers a request: a head at its knobs over one index, or over the shards of one.

    `normalizer` is "" for none; any number of threads may call it.
    """

    model: str
    version: str
    digest: str
    head: str
    normalizer: str
    width: float

    @property
    def knobs(self) -> Mapping[str, float]:
        """The values of knobs, by their names."""


class RunningMean:
    """A mean that follows its last values; 0 until there is one. Any number of threads may add."""

    value = 0.0

    def add(self, value: float) -> None:
        self.value += (FRESH if self.value else 1.0) * (value - self.value)


class PreparedRequest(NamedTuple):
    """A request with its message read."""

    rows: int
    k: int  # what AUTO chooses for
    logits: int  # to be computed besides those that the head and log Z need
    draws: int
    compute: Callable[[Point], Reply]
    independent: np.ndarray | None = None  # hidden, where its rows may share a batch with others


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request that waits in the queue or is computed. Deadlines are seconds of `monotonic`."""

    point: Point
    request: PreparedRequest
    estimate_us: float
    pace: RunningMean  # of its engine: time taken / estimated; until measured it refuses no request
    arrived_ns: int
    deadline: float | None
    future: asyncio.Future[Computed]
    elsewhere: bool = False  # computed by a GPU or by other processes
    start: int = 0  # rows before it have been computed
    stop: int = 0  # rows from `start` to here are in a batch
    parts: list[TopKReply] = field(default_factory=list)  # of the computed rows
    queue_ns: int = 0
    device_ns: int = 0
    ready_at: float = 0.0  # from then on it is computed even if no other shares its batch
    us_per_row: float = field(init=False)
    paced_us: float = field(init=False)  # the same at the pace of its arrival
    key: tuple[Point, int, int] | None = field(init=False)  # equal ones may share a batch

    def __post_init__(self) -> None:
        hidden = self.request.independent
        self.us_per_row = self.estimate_us / self.request.rows
        self.paced_us = self.us_per_row * self.pace.value
        self.key = None if hidden is None else (self.point, self.request.k, hidden.shape[1])

    @property
    def left(self) -> int:
        return self.request.rows - self.start

    @property
    def whole(self) -> bool:
        """True if its batch holds all of its rows."""
        return self.stop - self.start == self.request.rows

    @property
    def batch_rows(self) -> int:
        if self.key is None:
            return self.request.rows
        if self.elsewhere:
            return BUCKET_ROWS
        return max(BATCH_ROWS, int(BATCH_US / max(self.us_per_row, 1e-3)))
