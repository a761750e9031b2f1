"""The GPUs that models answer on: looked for before anything loads, and watched afterwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from logitsieve.api.errors import InvalidRequest
from logitsieve.gpu.open import gpu_device, gpu_memory
from logitsieve.server.config import ServeConfig

if TYPE_CHECKING:
    from logitsieve.gpu.device import Memory

MemoryOf = Callable[[str], tuple[str, "Memory | None"]]


class Devices(Collector):
    """The GPUs that a configuration names; their memory, for Prometheus."""

    def __init__(
        self, config: ServeConfig, registry: CollectorRegistry, memory_of: MemoryOf = gpu_memory
    ) -> None:
        self._config, self._memory_of = config, memory_of
        named = [config.device, *config.device_by_model.values()]
        self.gpus = sorted({name for name in named if name != "cpu"})
        registry.register(self)

    def check(self, models: Collection[str]) -> None:
        """InvalidRequest names a GPU that is absent, or a model that is not among `models`."""
        if self._config.device != "cpu":
            gpu_device(self._config.device)
        for model, device in self._config.device_by_model.items():
            got = f"{model}={device}"
            if model not in models:
                names = ", ".join(sorted(models))
                raise InvalidRequest("model_devices", got, f"one of the models: {names}")
            try:
                if device != "cpu":
                    gpu_device(device)
            except InvalidRequest as error:
                raise InvalidRequest("model_devices", got, error.allowed) from error

    def collect(self) -> Iterator[Metric]:
        labels = ("device",)
        used = GaugeMetricFamily(
            "logitsieve_device_memory_used_bytes", "Memory of a GPU in use", labels=labels
        )
        total = GaugeMetricFamily(
            "logitsieve_device_memory_bytes", "Memory of a GPU", labels=labels
        )
        # By their own names: "cuda" and "cuda:0" are one GPU.
        for device, memory in dict(map(self._memory_of, self.gpus)).items():
            if memory is not None:
                used.add_metric((device,), memory.used)
                total.add_metric((device,), memory.total)
        yield from (used, total)
