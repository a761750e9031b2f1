"""Calls of shards for Prometheus, beside the series of the server that makes them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from logitsieve.server.metrics import SECONDS

SHARD = ("model", "version", "shard")


class ShardMetrics:
    """The series of an ingress, in a registry that they are given to later."""

    def __init__(self) -> None:
        self.answered = Counter(
            "logitsieve_shard_calls",
            "Calls of shards that a replica answered",
            (*SHARD, "replica"),
            registry=None,
        )
        self.failed = Counter(
            "logitsieve_shard_failures",
            "Calls of shards that a replica did not answer",
            (*SHARD, "reason"),
            registry=None,
        )
        self.seconds = Histogram(
            "logitsieve_shard_seconds",
            "From the call of a shard to its answer",
            SHARD,
            buckets=SECONDS,
            registry=None,
        )

    def register(self, registry: CollectorRegistry) -> None:
        for series in (self.answered, self.failed, self.seconds):
            registry.register(series)


class ShardCalls:
    """The counts of one shard; any thread may count."""

    def __init__(self, metrics: ShardMetrics, model: str, version: int, shard: int) -> None:
        self._metrics, self._labels = metrics, (model, str(version), str(shard))
        self._seconds = metrics.seconds.labels(*self._labels)

    def answered(self, replica: str, seconds: float) -> None:
        self._metrics.answered.labels(*self._labels, replica).inc()
        self._seconds.observe(seconds)

    def count(self, reason: str) -> None:
        """`lost`: the replica died, and another is asked; `late`: none answered in time; `silent`:
        none did before, and another call waits for it.
        """
        self._metrics.failed.labels(*self._labels, reason).inc()
