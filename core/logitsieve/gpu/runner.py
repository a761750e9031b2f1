"""An index's arrays on a GPU, and plans with their way in and out.

Arrays of the host go through pinned memory; a plan is launched as a graph.

Shape letters: B rows that the plan was made for, D hidden size, K answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from threading import Lock, local
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Float32
from logitsieve.gpu.device import device_context, own_stream
from logitsieve.gpu.matrix import DeviceSketch, Matrix, matrix_on, sketch_on
from logitsieve.gpu.plans import LaunchPlan, PlanOutput
from logitsieve.gpu.plans.certified import CertifiedPlan
from logitsieve.gpu.plans.exact import ExactPlan
from logitsieve.heads._base.head import Head, Softmax
from logitsieve.heads._base.spec import Arrays

T = TypeVar("T")

INTERPRETER_LOCK = Lock()  # Triton's interpreter runs one kernel at a time


class GpuArrays:
    """An index's arrays on one device. Heads share it; any number of threads may use it."""

    def __init__(
        self,
        device: torch.device,
        softmax: Softmax,
        parts: Mapping[str, Arrays],
        host: Callable[[], Mapping[str, Head]],
    ) -> None:
        self.device, self.softmax, self.parts, self._host = device, softmax, parts, host
        with device_context(device):
            self.matrix: Matrix = matrix_on(device, softmax.stored, softmax.bias)
        self._kept: dict[str, Any] = {}
        self._lock = Lock()

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """The value of that name, made at its first use."""
        with self._lock, device_context(self.device):
            if name not in self._kept:
                self._kept[name] = make()
            found: T = self._kept[name]
            return found

    @property
    def sketch(self) -> DeviceSketch:
        return self.kept("sketch", lambda: sketch_on(self.device, self.parts["sketch"]))

    def cpu_head(self, name: str, knobs: Mapping[str, float]) -> Head:
        """The head of that name on the host, over the same arrays."""
        return self._cpu_heads[name].with_knobs(**knobs)

    @cached_property
    def _cpu_heads(self) -> Mapping[str, Head]:
        """Made at their first use: a matrix of a half type is widened then."""
        return self._host()

    def fallback(self, hidden: Tensor, k: int, found: PlanOutput, status: Tensor) -> LaunchPlan:
        """The plan for rows that another passes on: `certified` if the index has its sketch."""
        if "sketch" in self.parts:
            return CertifiedPlan(self.matrix, self.sketch, hidden, k, (found, status))
        return ExactPlan(self.matrix, hidden, k, (found, status))

    @property
    def launch_lock(self) -> AbstractContextManager[object]:
        return nullcontext() if self.graphs else INTERPRETER_LOCK

    @cached_property
    def graphs(self) -> bool:
        """True where launches can be captured: not by the interpreter."""
        return self.device.type == "cuda"


_spent = local()


def spent_ns() -> int:
    """Nanoseconds of GPU time for this thread's arrays so far, copies included."""
    return getattr(_spent, "ns", 0)


class PinnedBuffers(NamedTuple):
    """Pinned memory, so that the GPU copies by itself."""

    hidden: Tensor  # [B, D]
    found: tuple[Tensor, ...]


class PlanRunner:
    """Used by one thread at a time. Tensors are answered on whatever stream is current, arrays on
    the thread's own. Raises DeviceExhausted where the GPU has no room, DeviceLost where it fails.
    """

    def __init__(self, gpu: GpuArrays, plan: Callable[[Tensor], LaunchPlan], rows: int) -> None:
        self._device, self._launch_lock = gpu.device, gpu.launch_lock
        self._graph: torch.cuda.CUDAGraph | None = None
        self._began: torch.cuda.Event | None = None
        self._done: torch.cuda.Event | None = None
        if gpu.graphs:
            self._began, self._done = _timed_event(), _timed_event()
        with device_context(self._device), self._own_stream():
            shape = rows, gpu.matrix.dim
            # A row that nobody asks about is refused at once.
            hidden = torch.full(shape, torch.nan, dtype=torch.float32, device=self._device)
            self._plan = plan(hidden)
            self._staged = PinnedBuffers(
                self._beside(hidden), tuple(self._beside(each) for each in self._plan.found)
            )
            with self._launch_lock:
                self._plan.run()  # compiles what is not compiled
            if gpu.graphs:
                self._graph = _captured(self._plan)

    def _beside(self, tensor: Tensor) -> Tensor:
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
        with device_context(self._device):
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
        with device_context(self._device), self._own_stream():
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
            with self._launch_lock:
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
        """Wait for the GPU; only then is its time known."""
        if self._began is not None and self._done is not None:
            self._done.synchronize()
            _spent.ns = spent_ns() + round(self._began.elapsed_time(self._done) * 1e6)


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _captured(plan: LaunchPlan) -> torch.cuda.CUDAGraph:
    """Launches of `plan` on this thread's stream: one that it shared would capture others' too."""
    device = plan.hidden.device
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=own_stream(device), capture_error_mode="thread_local"):
        plan.run()
    return graph
