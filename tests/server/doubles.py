"""A model that computes when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from logitsieve.api.results import ArrayLike, Candidates, TopK
from logitsieve.heads import Head
from logitsieve.index import Index
from logitsieve.server import ServeConfig
from logitsieve.server.models.repository import Repository, open_configured
from logitsieve.utils.options import Progress
from tests.server.running import WAIT_S


class Gate:
    """Holds computations while it is shut, and counts them."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.computed = 0
        self.failure: Exception | None = None
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self.computed = 0
        self.entered = threading.Semaphore(0)
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def wait_entered(self) -> None:
        assert self.entered.acquire(timeout=WAIT_S)

    def through(self) -> None:
        self.computed += 1
        self.entered.release()
        assert self._open.wait(WAIT_S)
        if self.failure is not None:
            raise self.failure


class GatedHead:
    """A head behind a gate."""

    def __init__(self, head: Head, gate: Gate) -> None:
        self._head, self._gate = head, gate
        self.name, self.knob_table, self.proves = head.name, head.knob_table, head.proves

    @property
    def knobs(self) -> Mapping[str, float]:
        return self._head.knobs

    def with_knobs(self, **knobs: float) -> GatedHead:
        return GatedHead(self._head.with_knobs(**knobs), self._gate)

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        self._gate.through()
        return self._head.topk(hidden, k)

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        return self._head.candidates(hidden, k)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)  # what only the exact head has


class GatedIndex:
    """An index whose heads are behind a gate."""

    def __init__(self, index: Index, gate: Gate) -> None:
        self._index, self._gate = index, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def head(self, name: str = "") -> GatedHead:
        return GatedHead(self._index.head(name), self._gate)


def gated(config: ServeConfig, gate: Gate) -> Repository:
    def opener(path: Path, config: ServeConfig, progress: Progress) -> Index:
        return cast(Index, GatedIndex(open_configured(path, config, progress), gate))

    return Repository(config, opener)
