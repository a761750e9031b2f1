"""Times of calls on a GPU: what the GPU took, by events, and what the caller waited."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter_ns

import torch

Call = Callable[[], object]
FLUSHED = 256 << 20  # bytes written between calls, more than any GPU's L2
COPIED = 1 << 30


class Clock:
    """Medians over `repeats` warm calls, with the L2 cache as the last call left it, or flushed."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats, self.real = device, repeats, device.type == "cuda"
        size = FLUSHED if self.real else 1
        self._flushed = torch.empty(size, dtype=torch.int8, device=device)

    def us(self, call: Call) -> dict[str, float]:
        """Microseconds: `device`, `device_flushed`, and `wall` of a call that is waited for.

        Without a GPU (under the interpreter) all three are the caller's.
        """
        for _ in range(3 if self.real else 0):
            call()
        self._wait()
        wall = statistics.median(self._wall(call) for _ in range(self.repeats))
        if not self.real:
            return {"device": wall, "device_flushed": wall, "wall": wall}
        found = {"device": self._device(call, False), "device_flushed": self._device(call, True)}
        return {**found, "wall": wall}

    def copy_gbps(self) -> float:
        """Bytes read and written by a copy, in GB/s: the bound that shares are given of."""
        size = COPIED if self.real else 1 << 20
        there = torch.empty(size, dtype=torch.int8, device=self.device)
        here = torch.empty_like(there)
        return 2 * size / self.us(lambda: here.copy_(there))["device"] / 1e3

    def _device(self, call: Call, flush: bool) -> float:
        times = []
        for _ in range(self.repeats):
            if flush:
                self._flushed.zero_()
            begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begun.record()
            call()
            done.record()
            done.synchronize()
            times.append(begun.elapsed_time(done) * 1e3)
        return float(statistics.median(times))

    def _wall(self, call: Call) -> float:
        start = perf_counter_ns()
        call()
        self._wait()
        return (perf_counter_ns() - start) / 1e3

    def _wait(self) -> None:
        if self.real:
            torch.cuda.synchronize(self.device)


def captured(call: Call, device: torch.device) -> Call:
    """The same launches from a CUDA graph; `call` itself where there is no GPU."""
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
