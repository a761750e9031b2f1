"""Requests: read, then queued with their estimated cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from logitsieve.api.results import TopKReply
from logitsieve.decoding.local_decoder import Answering
from logitsieve.v1.rpcs import Reply

# Heads gain little by larger batches; cheap rows make larger ones, up to BATCH_US.
BATCH_ROWS = 64
BATCH_US = 2000.0

# A GPU's largest bucket: a batch for it, or for other processes, costs little more than a row.
BUCKET_ROWS = 256

FRESH = 0.2  # weight of the last value in a RunningMean

# A reply, the wait of its request and a GPU's time for it, in nanoseconds.
Computed = tuple[Reply, int, int]


class Point(Answering, Protocol):
    """A head at its knobs over one index or over shards; thread-safe. `normalizer` "": none."""

    model: str
    version: str
    digest: str
    head: str
    normalizer: str
    width: float

    @property
    def knobs(self) -> Mapping[str, float]: ...


class RunningMean:
    """A mean that follows its last values; 0 at first. Any number of threads may add."""

    value = 0.0

    def add(self, value: float) -> None:
        self.value += (FRESH if self.value else 1.0) * (value - self.value)


class PreparedRequest(NamedTuple):
    rows: int
    k: int  # that AUTO chooses for
    logits: int  # more than the head and log Z need
    draws: int
    compute: Callable[[Point], Reply]
    independent: np.ndarray | None = None  # hidden, if its rows may join a batch


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request that waits or is computed. Deadlines are seconds of `monotonic`."""

    point: Point
    request: PreparedRequest
    estimate_us: float
    pace: RunningMean  # of its engine: time taken / estimated; 0 until measured
    arrived_ns: int
    deadline: float | None
    future: asyncio.Future[Computed]
    offloaded: bool = False  # computed by a GPU or by other processes
    start: int = 0  # rows before it have been computed
    stop: int = 0  # rows from `start` to here are in a batch
    parts: list[TopKReply] = field(default_factory=list)  # of the computed rows
    queue_ns: int = 0
    device_ns: int = 0
    ready_at: float = 0.0  # from then on it waits for no others
    us_per_row: float = field(init=False)
    paced_us: float = field(init=False)  # at the pace of its arrival
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
        return self.stop - self.start == self.request.rows

    @property
    def batch_rows(self) -> int:
        if self.key is None:
            return self.request.rows
        if self.offloaded:
            return BUCKET_ROWS
        return max(BATCH_ROWS, int(BATCH_US / max(self.us_per_row, 1e-3)))
