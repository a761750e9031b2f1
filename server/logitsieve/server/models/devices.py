"""GPU memory for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from logitsieve.gpu.open import gpu_memory

if TYPE_CHECKING:
    from logitsieve.gpu.device import Memory

MemoryOf = Callable[[str], tuple[str, "Memory | None"]]


class Devices(Collector):
    """The series of a server's device; none for the CPU."""

    def __init__(
        self, device: str, registry: CollectorRegistry, memory_of: MemoryOf = gpu_memory
    ) -> None:
        self._device, self._memory_of = device, memory_of
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        labels = ("device",)
        used = GaugeMetricFamily(
            "logitsieve_device_memory_used_bytes", "Memory of a GPU in use", labels=labels
        )
        total = GaugeMetricFamily(
            "logitsieve_device_memory_bytes", "Memory of a GPU", labels=labels
        )
        if self._device != "cpu":
            device, memory = self._memory_of(self._device)  # named cuda:0, not cuda
            if memory is not None:
                used.add_metric((device,), memory.used)
                total.add_metric((device,), memory.total)
        yield from (used, total)
