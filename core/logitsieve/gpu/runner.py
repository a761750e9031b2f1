"""An index's arrays on a GPU, and plans with their way in and out.

Arrays of the host go through pinned memory; a plan is launched as a graph.

Shape letters: B rows that the plan was made for, D hidden size, K answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock, local
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from logitsieve.gpu.device import device_context, own_stream
from logitsieve.gpu.matrix import DeviceSketch, Matrix, matrix_on, sketch_on
from logitsieve.gpu.plans import After, LaunchPlan
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
        fallback: str = "",
    ) -> None:
        self._bounded = "sketch" in parts and fallback != "exact"
        self.device, self.softmax, self.parts, self._host = device, softmax, parts, host
        self.graphs = device.type == "cuda"  # launches can be captured: not by the interpreter
        self.launch_lock: AbstractContextManager[object]
        self.launch_lock = nullcontext() if self.graphs else INTERPRETER_LOCK
        with device_context(device):
            self.matrix: Matrix = matrix_on(device, softmax.matrix, softmax.bias)
        self._kept: dict[str, Any] = {}
        self._lock = Lock()

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """The value of that name, made at its first use."""
        with self._lock, device_context(self.device):
            if name not in self._kept:
                self._kept[name] = make()
            value: T = self._kept[name]
            return value

    @property
    def sketch(self) -> DeviceSketch:
        return self.kept("sketch", lambda: sketch_on(self.device, self.parts["sketch"]))

    def cpu_head(self, name: str, knobs: Mapping[str, float]) -> Head:
        """The head of that name on the host, over the same arrays."""
        # Made at the first use of one.
        return self.kept("host", self._host)[name].with_knobs(**knobs)

    def fallback(self, hidden: Tensor, k: int, after: After | None = None) -> LaunchPlan:
        """The plan for rows that another passes on: `certified` if the index has its sketch.

        Unless its build found `exact` to be faster: answers are equal, `scanned` is not.
        """
        if self._bounded:
            return CertifiedPlan(self.matrix, self.sketch, hidden, k, after)
        return ExactPlan(self.matrix, hidden, k, after)


_spent = local()


def spent_ns() -> int:
    """Nanoseconds of GPU time for this thread's arrays so far, copies included."""
    return getattr(_spent, "ns", 0)


class PlanRunner:
    """A plan with its graph and its pinned buffers. Used by one thread at a time.

    Raises DeviceExhausted where the GPU has no room, DeviceLost where it fails.
    """

    def __init__(self, gpu: GpuArrays, plan: Callable[[Tensor], LaunchPlan], rows: int) -> None:
        self._device, self._launch_lock = gpu.device, gpu.launch_lock
        self._graph: torch.cuda.CUDAGraph | None = None
        # Where the GPU begins with rows of the host, and where it has done with any rows.
        self._events = (_timed_event(), _timed_event()) if gpu.graphs else None
        with device_context(self._device), self._own_stream():
            # A row that nothing is written to is refused at once.
            shape = rows, gpu.matrix.dim
            hidden = torch.full(shape, torch.nan, dtype=torch.float32, device=self._device)
            self._plan = plan(hidden)
            self._pinned = self._beside(hidden)  # the GPU copies from there by itself
            self._pinned_output = [self._beside(each) for each in self._plan.output]
            with self._launch_lock:
                self._plan.run()  # compiles what is not compiled
            if gpu.graphs:
                self._graph = _captured(self._plan)

    def _beside(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device="cpu", pin_memory=self._events is not None)

    def _own_stream(self) -> AbstractContextManager[object]:
        if self._events is None:
            return nullcontext()
        return torch.cuda.stream(own_stream(self._device))

    def answer(self, hidden: Any, outputs: Sequence[Tensor], fill: Callable[[Any], None]) -> None:
        """Answer a few rows into `outputs`; `fill` writes what else the plan reads.

        Rows in a tensor on the GPU are answered there, on whatever stream is current, and nothing
        is waited for. Those in an array are answered on the host, by the thread's own stream.
        """
        rows, on_host = len(hidden), isinstance(hidden, np.ndarray)
        stream = self._own_stream() if on_host else nullcontext()
        with device_context(self._device), stream:
            if self._events is not None:
                self._events[1].wait()  # the buffers may be in use still, on another stream
            if on_host:
                self._pinned.numpy()[:rows] = hidden  # which may be read-only
                hidden = self._pinned[:rows]
                if self._events is not None:
                    self._events[0].record()
            self._plan.hidden[:rows].copy_(hidden, non_blocking=on_host)
            self._plan.hidden[rows:].fill_(torch.nan)
            fill(self._plan)
            self._launch()
            answers: Sequence[Tensor] = self._plan.output
            if on_host:
                for pinned, answer in zip(self._pinned_output, answers, strict=True):
                    pinned.copy_(answer, non_blocking=True)
                self._wait()
                answers = self._pinned_output
            for output, answer in zip(outputs, answers, strict=True):
                output.copy_(answer[:rows])
            if self._events is not None:
                self._events[1].record()

    def _launch(self) -> None:
        if self._graph is None:
            with self._launch_lock:
                self._plan.run()
        else:
            self._graph.replay()

    def _wait(self) -> None:
        """Wait for the GPU; only then is its time known."""
        if self._events is not None:
            began, done = self._events
            done.record()
            done.synchronize()
            _spent.ns = spent_ns() + round(began.elapsed_time(done) * 1e6)


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
