"""Spans of calls: their times, parents and attributes, by the SDK's own exporter in memory."""

from typing import Any

import grpc
import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Answer
from tests.server.running import Running
from tests.synthetic import make_hidden

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra otel")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

from logitsieve.server.metrics import Call  # noqa: E402
from logitsieve.server.tracing import STAGES, Tracing  # noqa: E402

TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
HEADER = [("traceparent", f"00-{TRACE:032x}-{PARENT:016x}-01")]


@pytest.fixture
def exporter(server: Running, monkeypatch: pytest.MonkeyPatch) -> Any:
    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(server.server.metrics, "on_finish", Tracing(provider).record)
    return exporter


def test_a_call_continues_the_clients_trace(server: Running, exporter: Any) -> None:
    client = server.client.with_options(metadata=[*HEADER, ("x-request-id", "seven")])
    reply = client.topk(make_hidden(3), 2, model="demo")
    *stages, call = exporter.get_finished_spans()
    assert [span.name for span in stages] == list(STAGES)
    assert (call.name, call.context.trace_id, call.parent.span_id) == ("TopK", TRACE, PARENT)
    assert all(span.parent.span_id == call.context.span_id for span in stages)
    times = [span.start_time for span in stages] + [stages[-1].end_time, call.end_time]
    assert call.start_time == times[0]
    assert times == sorted(times)
    computing = stages[2].end_time - stages[2].start_time
    assert abs(computing - reply.answer.compute_ns) <= 1
    given = {"rpc.service": "logitsieve.v1.Decoder", "rpc.method": "TopK", "logitsieve.rows": 3}
    given |= {"rpc.system": "grpc", "rpc.grpc.status_code": 0}
    given |= {"logitsieve.model": "demo", "logitsieve.request_id": "seven"}
    assert given.items() <= dict(call.attributes).items()
    assert call.status.is_unset


def test_calls_to_shards_are_inside_what_is_computed() -> None:
    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    none = np.zeros(1, np.int32)
    call = Call("TopK", arrived_ns=1000, queue_ns=100)
    call.answer = Answer("m", "1", "", "full", none > 0, none, none > 0, compute_ns=500)
    call.timings.append(("shard 256", 1200, 1500))
    call.code = "OK"
    Tracing(provider).record(call)
    spans: dict[str, Any] = {span.name: span for span in exporter.get_finished_spans()}
    shard, compute = spans["shard 256"], spans["compute"]
    assert shard.parent.span_id == compute.context.span_id
    assert shard.start_time - compute.start_time == 100
    assert shard.end_time - shard.start_time == 300


def test_messages_of_a_stream_and_failures_have_theirs(server: Running, exporter: Any) -> None:
    with server.client.with_options(metadata=HEADER).stream() as stream:
        stream.topk(make_hidden(1), 2, model="demo")
        with pytest.raises(InvalidRequest):
            stream.topk(make_hidden(1), 1 << 20, model="demo")
    *_, good, bad = exporter.get_finished_spans()
    assert {good.context.trace_id, bad.context.trace_id} == {TRACE}
    assert bad.attributes["rpc.grpc.status_code"] == 3
    assert (bad.status.status_code.name, bad.status.description) == ("ERROR", "INVALID_ARGUMENT")


@pytest.mark.parametrize("header", ["", "00-zz-1-01", "\x7f" * 9])
def test_any_other_header_begins_a_trace(server: Running, exporter: Any, header: str) -> None:
    call = server.channel.unary_unary("/logitsieve.v1.Models/List")
    try:
        call(b"", timeout=60, metadata=[("traceparent", header)])
    except (grpc.RpcError, ValueError):
        return  # gRPC sends no such header
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
