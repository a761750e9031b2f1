"""What the server counts, for Prometheus; requests are counted on the event loop.

The `model` label is the name of a loaded model or "unknown": what clients send never becomes a
label. Durations are in seconds.
"""

from __future__ import annotations

from functools import cache
from time import perf_counter_ns

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from logitsieve.types.results import Answer

UNKNOWN = "unknown"

# From 10 us, where a screened row is, by steps of 1-2-5 to the 5 s default timeout of the client.
SECONDS = tuple(base * 10.0**power for power in range(-5, 1) for base in (1, 2, 5))


class Call:
    """One request on its way: what there is to count about it. Times in nanoseconds."""

    __slots__ = ("answer", "arrived_ns", "code", "elapsed_ns", "model", "queue_ns", "rpc")

    def __init__(self, rpc: str) -> None:
        self.arrived_ns = perf_counter_ns()
        self.rpc = rpc
        self.model = UNKNOWN
        self.answer: Answer | None = None
        self.queue_ns = 0

    def finish(self, code: str) -> None:
        """The reply is about to leave."""
        self.code = code
        self.elapsed_ns = perf_counter_ns() - self.arrived_ns


class Metrics:
    """All series, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"logitsieve_{name}", help_text, labels, registry=self.registry)

        def seconds(name: str, help_text: str, *labels: str) -> Histogram:
            return Histogram(
                f"logitsieve_{name}", help_text, labels, registry=self.registry, buckets=SECONDS
            )

        self._requests = counter("requests", "Requests answered", "rpc", "model", "code")
        self._request_seconds = seconds("request_seconds", "From arrival to reply", "rpc", "model")
        self._queue_seconds = seconds("queue_seconds", "From arrival to computing", "model")
        self._compute_seconds = seconds("compute_seconds", "Computing", "model", "head")
        self._rows = counter("rows", "Rows answered", "model", "head")
        self._scanned = counter("scanned_rows", "Rows of W with an exact logit", "model", "head")
        self._certified = counter("certified_rows", "Rows proven exact", "model", "head")
        self._fallback = counter("fallback_rows", "Rows handed to the fallback", "model", "reason")
        self._shed = counter("shed", "Requests refused before computing", "reason")
        self._index_info = Gauge(
            "logitsieve_index_info",
            "Loaded indexes; always 1",
            ("model", "version", "digest", "vocabulary", "dim"),
            registry=self.registry,
        )
        # Finding a labelled child costs more than using it; labels are few by construction.
        self._requests_of = cache(self._requests.labels)
        self._request_seconds_of = cache(self._request_seconds.labels)
        self._answer_of = cache(self._answer_children)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def loaded(self, model: str, version: str, digest: str, vocabulary: int, dim: int) -> None:
        """An index that is ready."""
        self._index_info.labels(model, version, digest, str(vocabulary), str(dim)).set(1)

    def record(self, call: Call) -> None:
        """A request that has finished, with an answer or with an error."""
        self._requests_of(call.rpc, call.model, call.code).inc()
        self._request_seconds_of(call.rpc, call.model).observe(call.elapsed_ns * 1e-9)
        if call.answer is not None:
            self._record_answer(call.answer, call.queue_ns)

    def shed(self, reason: str) -> None:
        """A request that was refused before it was computed."""
        self._shed.labels(reason).inc()

    def _record_answer(self, answer: Answer, queue_ns: int) -> None:
        queue, compute, rows, scanned, certified = self._answer_of(answer.model, answer.head)
        queue.observe(queue_ns * 1e-9)
        compute.observe(answer.compute_ns * 1e-9)
        # For the few rows of a usual request, Python adds and counts faster than numpy.
        rows.inc(len(answer.exact))
        scanned.inc(sum(answer.scanned.tolist()))
        certified.inc(answer.exact.tobytes().count(1))
        if handed_over := answer.fallback.tobytes().count(1):
            self._fallback.labels(answer.model, "escalated").inc(handed_over)

    def _answer_children(
        self, model: str, head: str
    ) -> tuple[Histogram, Histogram, Counter, Counter, Counter]:
        return (
            self._queue_seconds.labels(model),
            self._compute_seconds.labels(model, head),
            self._rows.labels(model, head),
            self._scanned.labels(model, head),
            self._certified.labels(model, head),
        )
