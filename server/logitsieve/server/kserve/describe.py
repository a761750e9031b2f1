"""What Triton's tools ask of a model: its tensors, and what its ModelInfer calls took."""

from collections.abc import Iterable
from time import perf_counter_ns, time_ns
from typing import Any

from tritonclient.grpc import model_config_pb2 as triton
from tritonclient.grpc import service_pb2 as kserve

from logitsieve.server.kserve.infer import TENSORS, TensorKind
from logitsieve.server.metrics import Call
from logitsieve.server.models.routes import Version

PLATFORM = "logitsieve"
REQUIRED = ("hidden_states", "k")  # by `topk`, the default method


def tensor_metadata(kind: TensorKind, dim: int) -> Any:
    return kserve.ModelMetadataResponse.TensorMetadata(
        name=kind.name, datatype=kind.datatypes[0], shape=kind.sizes(dim)
    )


def model_config(name: str, dim: int) -> Any:
    """Return a ModelConfig; tensors have their rows among `dims`, as max_batch_size is 0."""
    config = triton.ModelConfig(name=name, platform=PLATFORM, backend=PLATFORM)
    for kind in TENSORS["inputs"]:
        optional = kind.name not in REQUIRED
        config.input.add(**_as_configured(kind, dim), optional=optional)
    for kind in TENSORS["outputs"]:
        config.output.add(**_as_configured(kind, dim))
    return config


def _as_configured(kind: TensorKind, dim: int) -> dict[str, Any]:
    data_type = triton.DataType.Value(f"TYPE_{kind.datatypes[0]}")
    return {"name": kind.name, "data_type": data_type, "dims": kind.sizes(dim)}


class InferStatistics:
    """Counts and durations of the ModelInfer calls of each version since the server's start."""

    def __init__(self) -> None:
        self._by_version: dict[tuple[str, str], Any] = {}

    def add(self, call: Call) -> None:
        """Count a call that was routed to a version; without an answer it has failed."""
        statistics = self._of(call.model, call.version)
        durations, elapsed_ns = statistics.inference_stats, perf_counter_ns() - call.arrived_ns
        if call.answer is None:
            _count(durations.fail, elapsed_ns)
            return
        compute_ns = call.answer.compute_ns
        statistics.last_inference = time_ns() // 1_000_000
        statistics.inference_count += 1
        statistics.execution_count += 1
        _count(durations.success, elapsed_ns)
        _count(durations.queue, call.queue_ns)
        _count(durations.compute_infer, compute_ns)
        _count(durations.compute_output, max(0, elapsed_ns - call.queue_ns - compute_ns))

    def of(self, versions: Iterable[Version]) -> Any:
        """Return a ModelStatisticsResponse; versions that were never asked have zeros."""
        found = [self._of(version.name, str(version.number)) for version in versions]
        return kserve.ModelStatisticsResponse(model_stats=found)

    def keep(self, versions: Iterable[Version]) -> None:
        """Forget all other versions."""
        known = {(version.name, str(version.number)) for version in versions}
        self._by_version = {key: of for key, of in self._by_version.items() if key in known}

    def _of(self, model: str, version: str) -> Any:
        new = kserve.ModelStatistics(name=model, version=version)
        return self._by_version.setdefault((model, version), new)


def _count(duration: Any, ns: int) -> None:
    duration.count += 1
    duration.ns += ns
