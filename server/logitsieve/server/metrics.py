"""What the server counts, for Prometheus: plain integers, made into series when they are read.

Requests are counted, and counts are read, on the event loop: nothing here needs a lock. They are
counted some at a time: one by one, between requests, each would find the processor's caches cold.

The `model` label is the name of a loaded model or "unknown": what clients send never becomes a
label. Durations are in seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from time import perf_counter_ns

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from logitsieve.api.results import Answer
from logitsieve.index import Index

UNKNOWN = "unknown"

# From 10 us, where a screened row is, by steps of 1-2-5 to the 5 s default timeout of the client.
SECONDS = tuple(base * 10.0**power for power in range(-5, 1) for base in (1, 2, 5))
BOUNDS_NS = [round(bound * 1e9) for bound in SECONDS]
BATCH_ROWS = tuple(1 << power for power in range(11))
LABELS = [*map(str, SECONDS), "+Inf"]

KEPT = 16  # finished requests, until they are counted


class Call:
    """One request on its way: what there is to count about it. Times in nanoseconds."""

    __slots__ = (
        "answer",
        "arrived_ns",
        "code",
        "device_ns",
        "elapsed_ns",
        "id",
        "model",
        "queue_ns",
        "request_id",
        "rpc",
    )

    def __init__(self, rpc: str) -> None:
        self.arrived_ns = perf_counter_ns()
        self.rpc = rpc
        self.id = 0  # on a stream, once it is known
        self.request_id = ""  # of the client's metadata, or made if the call fails
        self.model = UNKNOWN
        self.answer: Answer | None = None
        self.queue_ns = self.device_ns = 0

    def finish(self, code: str) -> None:
        """The reply is about to leave."""
        self.code = code
        self.elapsed_ns = perf_counter_ns() - self.arrived_ns


class Durations:
    """A histogram of durations."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.total_ns = 0

    def add(self, ns: int) -> None:
        """One more; a bucket holds its upper bound."""
        self.counts[bisect_left(BOUNDS_NS, ns)] += 1
        self.total_ns += ns

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound in seconds, how many are not above it)."""
        return list(zip(LABELS, accumulate(self.counts), strict=True))


class Counters(defaultdict[tuple[str, ...], float]):
    """A counter by the values of its labels."""

    def __init__(self, name: str, help_text: str, *labels: str) -> None:
        super().__init__(int)
        self._series = (f"logitsieve_{name}", help_text, labels)

    def metric(self) -> Metric:
        """As the registry takes it."""
        name, help_text, labels = self._series
        family = CounterMetricFamily(name, help_text, labels=labels)
        for values, count in self.items():
            family.add_metric(values, count)
        return family


class Histograms(defaultdict[tuple[str, ...], Durations]):
    """A histogram of durations by the values of its labels."""

    def __init__(self, name: str, help_text: str, *labels: str) -> None:
        super().__init__(Durations)
        self._series = (f"logitsieve_{name}", help_text, labels)

    def metric(self) -> Metric:
        """As the registry takes it."""
        name, help_text, labels = self._series
        family = HistogramMetricFamily(name, help_text, labels=labels)
        for values, durations in self.items():
            family.add_metric(values, durations.buckets(), durations.total_ns * 1e-9)
        return family


class Metrics(Collector):
    """All series, in a registry of their own."""

    def __init__(self) -> None:
        self._finished: list[Call] = []
        self._requests = Counters("requests", "Requests answered", "rpc", "model", "code")
        self._request_seconds = Histograms(
            "request_seconds", "From arrival to reply", "rpc", "model"
        )
        self._queue_seconds = Histograms("queue_seconds", "From arrival to computing", "model")
        self._compute_seconds = Histograms("compute_seconds", "Computing", "model", "head")
        self._device_seconds = Histograms("device_seconds", "Working on a GPU", "model", "head")
        self._rows = Counters("rows", "Rows answered", "model", "head")
        self._scanned = Counters("scanned_rows", "Rows of W with an exact logit", "model", "head")
        self._certified = Counters("certified_rows", "Rows proven exact", "model", "head")
        self._fallback = Counters("fallback_rows", "Rows handed to the fallback", "model", "reason")
        self._shed = Counters("shed", "Requests refused before computing", "reason")
        self._reloads = Counters("reloads", "Versions loaded while serving", "model", "result")
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._index_info = Gauge(
            "logitsieve_index_info",
            "Loaded indexes; always 1",
            ("model", "version", "digest", "vocabulary", "dim", "device"),
            registry=self.registry,
        )

        self._batch_rows = Histogram(
            "logitsieve_batch_rows",
            "Rows of each batch that the pool computed",
            buckets=BATCH_ROWS,
            registry=self.registry,
        )
        self._queue_rows = Gauge(
            "logitsieve_queue_rows", "Rows that wait for the pool", registry=self.registry
        )

    def collect(self) -> Iterator[Metric]:
        """Every series that requests count in, for the registry."""
        self._count_finished()
        for series in vars(self).values():
            if isinstance(series, Counters | Histograms):
                yield series.metric()

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def loaded(self, indexes: Iterable[Index]) -> None:
        """All indexes that answer by now."""
        self._index_info.clear()
        for index in indexes:
            rest = index.digest, str(index.vocab_size), str(index.dim), index.device
            self._index_info.labels(index.name, str(index.version), *rest).set(1)

    def reloaded(self, model: str, result: str) -> None:
        """A version that was to be loaded while others served: "ok" or "failed"."""
        self._reloads[model, result] += 1

    def record(self, call: Call) -> None:
        """A request that has finished, with an answer or with an error."""
        self._finished.append(call)
        if len(self._finished) >= KEPT:
            self._count_finished()

    def batch(self, rows: int) -> None:
        """A batch of the pool."""
        self._batch_rows.observe(rows)

    def watch_queue(self, rows: Callable[[], int]) -> None:
        """Where to read how many rows wait."""
        self._queue_rows.set_function(rows)

    def shed(self, reason: str) -> None:
        """A request that was refused before it was computed."""
        self._shed[reason,] += 1

    def _count_finished(self) -> None:
        finished, self._finished = self._finished, []
        for call in finished:
            self._count(call)

    def _count(self, call: Call) -> None:
        self._requests[call.rpc, call.model, call.code] += 1
        self._request_seconds[call.rpc, call.model].add(call.elapsed_ns)
        if call.answer is not None:
            self._record_answer(call.answer, call.queue_ns, call.device_ns)

    def _record_answer(self, answer: Answer, queue_ns: int, device_ns: int) -> None:
        by_head = answer.model, answer.head
        self._queue_seconds[answer.model,].add(queue_ns)
        if device_ns:
            self._device_seconds[by_head].add(device_ns)
        self._compute_seconds[by_head].add(answer.compute_ns)
        # For the few rows of a usual request, Python adds and counts faster than numpy.
        self._rows[by_head] += len(answer.exact)
        self._scanned[by_head] += sum(answer.scanned.tolist())
        self._certified[by_head] += answer.exact.tobytes().count(1)
        if handed_over := answer.fallback.tobytes().count(1):
            self._fallback[answer.model, "escalated"] += handed_over
