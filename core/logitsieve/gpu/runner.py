"""A plan with its way in and out: pinned memory for arrays of the host, a graph to launch it by.

Shape letters: B rows that the plan was made for, D hidden size, K answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import local
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Float32
from logitsieve.gpu.device import own_stream, using
from logitsieve.gpu.plans import Plan
from logitsieve.gpu.resident import GpuArrays

_spent = local()


def spent_ns() -> int:
    """How long GPUs have worked on this thread's arrays so far, the copies included."""
    return getattr(_spent, "ns", 0)


class Staged(NamedTuple):
    """Pinned memory, so that the GPU copies by itself."""

    hidden: Tensor  # [B, D]
    found: tuple[Tensor, ...]


class Runner:
    """Used by one thread at a time. Tensors are answered on whatever stream is current, arrays on
    the thread's own. Raises DeviceExhausted where the GPU has no room, DeviceLost where it fails.
    """

    def __init__(self, gpu: GpuArrays, plan: Callable[[Tensor], Plan], rows: int) -> None:
        self._device, self._turn = gpu.device, gpu.turn
        self._graph: torch.cuda.CUDAGraph | None = None
        self._began: torch.cuda.Event | None = None
        self._done: torch.cuda.Event | None = None
        if gpu.graphs:
            self._began, self._done = _timed_event(), _timed_event()
        with using(self._device), self._own_stream():
            shape = rows, gpu.matrix.dim
            # A row that nobody asks about is refused at once.
            hidden = torch.full(shape, torch.nan, dtype=torch.float32, device=self._device)
            self._plan = plan(hidden)
            self._staged = Staged(
                self._beside(hidden), tuple(self._beside(each) for each in self._plan.found)
            )
            with self._turn:
                self._plan.run()  # compiles what is not compiled
            if gpu.graphs:
                self._graph = _captured(self._plan)

    def _beside(self, tensor: Tensor) -> Tensor:
        """Room on the host for what `tensor` holds."""
        return torch.empty_like(tensor, device="cpu", pin_memory=self._done is not None)

    def _own_stream(self) -> AbstractContextManager[object]:
        if self._done is None:
            return nullcontext()
        return torch.cuda.stream(own_stream(self._device))

    def answer(self, hidden: Tensor, found: Sequence[Tensor], fill: Callable[[Any], None]) -> None:
        """Answer a few rows on the GPU into tensors there; nothing is waited for.

        `fill` writes what else the plan reads.
        """
        rows = len(hidden)
        with using(self._device):
            self._after_the_last()
            self._plan.hidden[:rows].copy_(hidden)
            fill(self._plan)
            self._launch(rows)
            for theirs, mine in zip(found, self._plan.found, strict=True):
                theirs.copy_(mine[:rows])
            self._mark(self._done)

    def answer_host(self, hidden: Float32, fill: Callable[[Any], None]) -> tuple[np.ndarray, ...]:
        """Answer a few rows of the host in arrays that are valid until the next."""
        rows = len(hidden)
        with using(self._device), self._own_stream():
            self._after_the_last()
            self._staged.hidden.numpy()[:rows] = hidden  # which may be read-only
            self._mark(self._began)
            self._plan.hidden[:rows].copy_(self._staged.hidden[:rows], non_blocking=True)
            fill(self._plan)
            self._launch(rows)
            for theirs, mine in zip(self._staged.found, self._plan.found, strict=True):
                theirs.copy_(mine, non_blocking=True)
            self._mark(self._done)
            self._wait()
        return tuple(each[:rows].numpy() for each in self._staged.found)

    def _launch(self, rows: int) -> None:
        self._plan.hidden[rows:].fill_(torch.nan)
        if self._graph is None:
            with self._turn:
                self._plan.run()
        else:
            self._graph.replay()

    def _after_the_last(self) -> None:
        """The buffers may be in use still, by a call on another stream."""
        if self._done is not None:
            self._done.wait()

    def _mark(self, event: torch.cuda.Event | None) -> None:
        if event is not None:
            event.record()

    def _wait(self) -> None:
        """Until the GPU is done; only then is it known how long it took."""
        if self._began is not None and self._done is not None:
            self._done.synchronize()
            _spent.ns = spent_ns() + round(self._began.elapsed_time(self._done) * 1e6)


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _captured(plan: Plan) -> torch.cuda.CUDAGraph:
    """Launches of `plan` on this thread's stream: one that it shared would capture others' too."""
    device = plan.hidden.device
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=own_stream(device), capture_error_mode="thread_local"):
        plan.run()
    return graph
