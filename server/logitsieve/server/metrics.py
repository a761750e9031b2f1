"""The server's metrics for Prometheus, counted in plain integers on the event loop.

prometheus_client would take a lock for each count. Labels never hold a client's text.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from platform import python_version
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from prometheus_client import CollectorRegistry, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from logitsieve.api.errors import DeadlineExceeded, DeviceExhausted, Overloaded
from logitsieve.api.results import Answer
from logitsieve.gpu.open import gpu_memory
from logitsieve.server.models.routes import Version
from logitsieve.utils.deadline import Timings
from logitsieve.version import __version__

if TYPE_CHECKING:
    from logitsieve.gpu.device import Memory

T = TypeVar("T")

MemoryOf = Callable[[str], tuple[str, "Memory | None"]]
UNKNOWN = "unknown"


Reasons = Mapping[type[Exception], str]
SHED: Reasons = {
    Overloaded: "in_flight",
    DeadlineExceeded: "deadline",
    DeviceExhausted: "device_memory",
}
UNREAD: Reasons = {Overloaded: "request_memory", DeadlineExceeded: "no_message"}
STREAMS: Reasons = {Overloaded: "streams"}
CLIENT_WAIT: Reasons = {Overloaded: "told_wait"}
REASONS = [
    reason for reasons in (SHED, UNREAD, STREAMS, CLIENT_WAIT) for reason in reasons.values()
]

SECONDS = tuple(base * 10.0**power for power in range(-5, 1) for base in (1, 2, 5))
BOUNDS_NS = [round(bound * 1e9) for bound in SECONDS]
BATCH_ROWS = tuple(1 << power for power in range(11))
UPPER_BOUNDS = [*map(str, SECONDS), "+Inf"]

KEPT = 16  # finished calls are counted together, while the code is in the CPU's caches


@dataclass(slots=True, eq=False)
class Call:
    rpc: str
    size: int = 0
    left_s: float | None = None  # to its deadline, on arrival
    # When the message had been read, less the time that the call waited for memory.
    arrived_ns: int = field(default_factory=perf_counter_ns)
    client_wait_ns: int = 0  # wait before that, by the client's report
    shed: Reasons = field(default_factory=lambda: SHED)
    id: int = 0
    request_id: str = ""  # the client's, or made when the call fails
    trace: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    shrink: Callable[[int], object] = int  # lowers the bytes that its port counts for it
    admitted_ns: int = 0
    model: str = UNKNOWN
    version: str = ""
    alias: str = ""
    answer: Answer | None = None
    timings: Timings = field(default_factory=list)
    queue_ns: int = 0
    device_ns: int = 0
    elapsed_ns: int = 0
    code: str = ""

    def route(self, requested: str, model: str, version: str) -> None:
        self.model, self.version, self.alias = model, version, requested.partition(":")[2]

    def limit(self, seconds: float) -> None:
        if seconds:
            self.left_s = seconds if self.left_s is None else min(seconds, self.left_s)


class Series(defaultdict[tuple[str, ...], T]):
    def __init__(self, zero: Callable[[], T], name: str, help_text: str, *labels: str) -> None:
        super().__init__(zero)
        name = f"logitsieve_{name}"
        self._about: Any = {"name": name, "documentation": help_text, "labels": labels}

    def keep(self, versions: Iterable[Version]) -> None:
        known = {(v.name, number) for v in versions for number in ("", str(v.number))}
        for values in list(self):
            of = dict(zip(self._about["labels"], values, strict=True))
            model = of.get("model", UNKNOWN)
            if model != UNKNOWN and (model, of.get("version", "")) not in known:
                del self[values]


class Counters(Series[float]):
    def __init__(self, name: str, help_text: str, *labels: str) -> None:
        super().__init__(int, name, help_text, *labels)

    def metric(self) -> Metric:
        family = CounterMetricFamily(**self._about)
        for values, count in self.items():
            family.add_metric(values, count)
        return family


class Histograms(Series[list[int]]):
    """Durations by labels; a value lists the buckets' counts, then the sum in ns."""

    def __init__(self, name: str, help_text: str, *labels: str) -> None:
        super().__init__(lambda: [0] * (len(UPPER_BOUNDS) + 1), name, help_text, *labels)

    def add(self, values: tuple[str, ...], ns: int) -> None:
        counts = self[values]
        counts[bisect_left(BOUNDS_NS, ns)] += 1
        counts[-1] += ns

    def metric(self) -> Metric:
        family = HistogramMetricFamily(**self._about)
        for values, (*counts, total_ns) in self.items():
            buckets = list(zip(UPPER_BOUNDS, accumulate(counts), strict=True))
            family.add_metric(values, buckets, total_ns * 1e-9)
        return family


class Metrics(Collector):
    """All counts of a server, without versions that `versions` no longer lists."""

    def __init__(self, versions: Callable[[], Iterable[Version]] | None = None) -> None:
        self._versions = versions
        self.on_finish: Callable[[Call], object] | None = None
        self._finished: list[Call] = []
        routed = "version", "alias"
        about = "Requests answered; a stream's messages by their rpc, unreadable ones as Decode"
        self._requests = Counters("requests", about, "rpc", "model", "code", *routed)
        self._request_seconds = Histograms(
            "request_duration_seconds", "From arrival to reply", "rpc", "model", *routed
        )
        self._queue_seconds = Histograms("queue_seconds", "From arrival to computing", "model")
        self._told_seconds = Histograms(
            "told_wait_seconds", "From sending to arrival, as clients say", "model"
        )
        self._compute_seconds = Histograms("compute_seconds", "Computing", "model", "head")
        self._device_seconds = Histograms("device_seconds", "Working on a GPU", "model", "head")
        self._rows = Counters("rows", "Rows answered", "model", "head", *routed)
        self._scanned = Counters("scanned_rows", "Rows of W with an exact logit", "model", "head")
        self._proven = Counters("proven_rows", "Rows proven", "model", "head")
        self._fallback = Counters("fallback_rows", "Rows handed to the fallback", "model", "reason")
        about = (
            "Requests refused before computing: in_flight, deadline (too late), device_memory, "
            "request_memory (too long unread), streams; by the client's doing no_message, told_wait"
        )
        self.rejected = Counters("requests_rejected", about, "reason")
        for reason in REASONS:  # PromQL's `rate` misses the first event of a new series
            self.rejected[reason,] = 0
        about = "Versions loaded while serving: ok, failed"
        self.reloads = Counters("reloads", about, "model", "result")
        registry = self.registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        info = Info("logitsieve_build", "Versions of the software", registry=registry)
        info.info({"version": __version__, "python": python_version(), "grpc": grpc.__version__})
        name, about = "logitsieve_batch_rows", "Rows of each batch that the pool computed"
        self.batch_rows = Histogram(name, about, buckets=BATCH_ROWS, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self.queue_rows = gauge("logitsieve_queue_rows", "Rows that wait for the pool")
        self.in_flight = gauge(
            "logitsieve_requests_in_flight", "Requests read, waiting, computing or answered"
        )
        self.waiting = gauge("logitsieve_requests_waiting", "Calls that wait for memory to be read")

    def collect(self) -> Iterator[Metric]:
        self._count_finished()
        versions = None if self._versions is None else list(self._versions())
        for version in versions or ():
            for result in ("ok", "failed"):
                self.reloads[version.name, result] += 0
        for series in vars(self).values():
            if isinstance(series, Counters | Histograms):
                if versions is not None:
                    series.keep(versions)
                yield series.metric()
        yield index_info(versions or ())

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def finish(self, call: Call, code: str) -> None:
        call.code, call.elapsed_ns = code, perf_counter_ns() - call.arrived_ns
        self.record(call)

    def record(self, call: Call) -> None:
        if self.on_finish is not None:
            self.on_finish(call)
        self._finished.append(call)
        if len(self._finished) >= KEPT:
            self._count_finished()

    def _count_finished(self) -> None:
        finished, self._finished = self._finished, []
        for call in finished:
            version, alias = call.version, call.alias
            self._requests[call.rpc, call.model, call.code, version, alias] += 1
            self._request_seconds.add((call.rpc, call.model, version, alias), call.elapsed_ns)
            answer = call.answer
            if answer is None:
                continue
            by_head = answer.model, answer.head
            self._queue_seconds.add((answer.model,), call.queue_ns)
            if call.client_wait_ns:
                self._told_seconds.add((answer.model,), call.client_wait_ns)
            if call.device_ns:
                self._device_seconds.add(by_head, call.device_ns)
            self._compute_seconds.add(by_head, answer.compute_ns)
            self._rows[(*by_head, version, alias)] += len(answer.proven)
            self._scanned[by_head] += sum(answer.scanned.tolist())
            self._proven[by_head] += answer.proven.tobytes().count(1)
            if handed_over := answer.fallback.tobytes().count(1):
                self._fallback[answer.model, "escalated"] += handed_over


def index_info(versions: Iterable[Version]) -> Metric:
    names = "model", "version", "digest", "vocab_size", "dim", "device"
    info = GaugeMetricFamily("logitsieve_index_info", "Loaded indexes; always 1", labels=names)
    for version in versions:
        if version.served is not None:
            info.add_metric(version.served.labels, 1)
    return info


class Devices(Collector):
    def __init__(
        self, device: str, registry: CollectorRegistry, memory_of: MemoryOf = gpu_memory
    ) -> None:
        self._device, self._memory_of = device, memory_of
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        family = partial(GaugeMetricFamily, labels=("device",))
        used = family("logitsieve_device_memory_used_bytes", "Memory of a GPU in use")
        total = family("logitsieve_device_memory_bytes", "Memory of a GPU")
        if self._device != "cpu":
            device, memory = self._memory_of(self._device)  # named cuda:0, not cuda
            if memory is not None:
                used.add_metric((device,), memory.used)
                total.add_metric((device,), memory.total)
        yield from (used, total)
