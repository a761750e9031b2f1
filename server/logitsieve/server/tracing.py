"""OpenTelemetry's spans of finished calls, from times that are taken anyway.

A call's span continues the client's W3C traceparent. Its children are `admit` (until the request
was read), `queue` (until computing began) and `compute`, which contains the calls to shards.
"""

from __future__ import annotations

from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING

import grpc
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from logitsieve.server.metrics import Call
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

SERVICES = {
    method.name: service.full_name
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
STAGES = ("admit", "queue", "compute")
FLUSH_MS = 2000


class Tracing:
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("logitsieve", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, call: Call) -> None:
        shift = time_ns() - perf_counter_ns()
        ended = call.arrived_ns + call.elapsed_ns
        span = self._tracer.start_span(
            call.rpc,
            self._propagator.extract(call.trace),
            SpanKind.SERVER,
            start_time=shift + call.arrived_ns,
            attributes={
                "rpc.system": "grpc",
                "rpc.service": SERVICES.get(call.rpc, ""),
                "rpc.method": call.rpc,
                "rpc.grpc.status_code": grpc.StatusCode[call.code].value[0],
                "logitsieve.model": call.model,
                "logitsieve.version": call.version,
                "logitsieve.request_id": call.request_id,
            },
        )
        answer = call.answer
        if answer is not None and span.is_recording():
            span.set_attribute("logitsieve.head", answer.head)
            span.set_attribute("logitsieve.rows", len(answer.proven))
            computing = call.arrived_ns + call.queue_ns
            admitted = min(call.admitted_ns or computing, computing)
            times = (call.arrived_ns, admitted, computing, computing + answer.compute_ns)
            inside = set_span_in_context(span)
            for stage, start, end in zip(STAGES, times, times[1:], strict=False):
                last = self._span(stage, inside, shift + start, shift + end)
            computed = set_span_in_context(last)
            for what, start, end in call.timings:
                self._span(what, computed, shift + start, shift + end)
        if call.code != "OK":
            span.set_status(Status(StatusCode.ERROR, call.code))
        span.end(shift + ended)

    def _span(self, name: str, inside: Context, start: int, end: int) -> Span:
        span = self._tracer.start_span(name, inside, start_time=start)
        span.end(end)
        return span

    def close(self) -> None:
        self._provider.force_flush(FLUSH_MS)


def open_tracing(endpoint: str) -> Tracing:
    """Send spans to an OTLP endpoint (gRPC). The variables OTEL_* set the sampler and the rest."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    about = Resource.create({"service.name": "logitsieve", "service.version": __version__})
    provider = TracerProvider(resource=about, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return Tracing(provider)
