import numpy as np
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from logitsieve.api.results import Answer
from logitsieve.server.metrics import BOUNDS_NS, REASONS, SECONDS, Call, Devices, Metrics
from logitsieve.server.models.routes import Version
from logitsieve.server.precision import PrecisionMetrics
from logitsieve.version import __version__
from tests.promlint import complaints


def finished(elapsed_ns: int, code: str = "OK", answer: Answer | None = None) -> Call:
    call = Call("TopK")
    call.route("demo@1", "demo", "1")
    call.answer = answer
    call.code, call.elapsed_ns = code, elapsed_ns
    return call


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.name == name
    }


def test_histograms_count_as_the_librarys_do() -> None:
    metrics = Metrics()
    theirs = Histogram("s", "s", buckets=SECONDS, registry=CollectorRegistry())
    for ns in (0, *BOUNDS_NS, *(bound + 1 for bound in BOUNDS_NS)):
        metrics.record(finished(ns))
        theirs.observe(ns / 1e9)
    expected = {
        ("", sample.labels["le"], "demo", "TopK", "1"): sample.value
        for sample in next(iter(theirs.collect())).samples
        if sample.name == "s_bucket"
    }
    assert samples(metrics, "logitsieve_request_duration_seconds_bucket") == expected
    total = (2 * sum(BOUNDS_NS) + len(BOUNDS_NS)) / 1e9
    ((_, found),) = samples(metrics, "logitsieve_request_duration_seconds_sum").items()
    np.testing.assert_allclose(found, total)


def test_what_an_answer_adds() -> None:
    metrics = Metrics()
    rows = np.array([True, False, True])
    scanned = np.array([300, 20, 300], np.int32)
    answer = Answer("demo", "1", "", "screen", rows, scanned, rows, compute_ns=3_000_000)
    call = finished(5, answer=answer)
    call.device_ns = 2_000_000
    metrics.record(call)
    metrics.record(finished(5, code="INTERNAL"))
    metrics.rejected["deadline",] += 1
    for name, labels, value in (
        ("requests_total", ("", "OK", "demo", "TopK", "1"), 1),
        ("requests_total", ("", "INTERNAL", "demo", "TopK", "1"), 1),
        ("rows_total", ("", "screen", "demo", "1"), 3),
        ("scanned_rows_total", ("screen", "demo"), 620),
        ("proven_rows_total", ("screen", "demo"), 2),
        ("fallback_rows_total", ("demo", "escalated"), 2),
        ("compute_seconds_sum", ("screen", "demo"), 0.003),
        ("device_seconds_sum", ("screen", "demo"), 0.002),
        ("queue_seconds_count", ("demo",), 1),
        ("requests_rejected_total", ("deadline",), 1),
    ):
        assert samples(metrics, f"logitsieve_{name}")[labels] == value, name


def test_series_go_with_their_version() -> None:
    versions = [Version("demo", 1), Version("demo", 2), Version("other", 1)]
    metrics = Metrics(lambda: versions)
    labels = {"demo@1": ("demo", "1"), "demo@2": ("demo", "2"), "other": ("other", "1")}
    for model, version in (*labels.values(), ("unknown", "")):
        call = finished(5)
        call.model, call.version = model, version
        metrics.record(call)
    found = samples(metrics, "logitsieve_requests_total")
    assert {key[2:] for key in found} == {
        (model, "TopK", version) for model, version in (*labels.values(), ("unknown", ""))
    }
    versions[:] = [Version("demo", 2)]
    for name in ("requests_total", "request_duration_seconds_count"):
        left = {key[-3:] for key in samples(metrics, f"logitsieve_{name}")}
        assert left == {("demo", "TopK", "2"), ("unknown", "TopK", "")}
    assert set(samples(metrics, "logitsieve_reloads_total")) == {("demo", "failed"), ("demo", "ok")}


def test_rates_see_the_first_refusal_and_operators_the_process() -> None:
    metrics = Metrics()
    assert samples(metrics, "logitsieve_requests_rejected_total") == {
        (each,): 0 for each in REASONS
    }
    assert samples(metrics, "process_resident_memory_bytes")[()] > 1 << 20
    ((_, _, version),) = samples(metrics, "logitsieve_build_info")
    assert version == __version__
    assert samples(metrics, "logitsieve_requests_in_flight") == {(): 0}


def test_the_types_are_prometheus_own() -> None:
    metrics = Metrics()
    PrecisionMetrics(metrics.registry, list)
    Devices("cpu", metrics.registry)
    metrics.record(finished(5))
    metrics.rejected["deadline",] += 1
    assert complaints(metrics.text().decode()) == ""
