"""The whole server: health, metrics, overload, deadlines, stopping."""

import socket
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import httpx2
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from logitsieve.api.errors import DeadlineExceeded, ModelNotFound, Overloaded, Unavailable
from logitsieve.client import DecoderClient
from logitsieve.server import ServeConfig, create_server
from logitsieve.server.rpc.handlers import MOST_TOLD_NS
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import TIMEOUT
from tests.refusals import refused
from tests.server.conftest import Serve
from tests.server.materials import Gate
from tests.server.messages import LARGE, LARGE_REQUEST, RawStream, asked, error_of
from tests.server.running import (
    NOT_SERVING,
    SERVING,
    START_S,
    WAIT_S,
    Loop,
    Running,
    config_for,
    requests_total,
    running,
    write_model,
)
from tests.synthetic import make_hidden


def get(server: Running, path: str, method: str = "GET") -> tuple[int, str]:
    url = f"http://127.0.0.1:{server.server.http_port}{path}"
    reply = httpx2.request(method, url, timeout=WAIT_S, verify=False)
    return reply.status_code, reply.text


def value(server: Running, series: str) -> float:
    lines = get(server, "/metrics")[1].splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(series + " ")), 0.0)


def test_health(server: Running) -> None:
    health = HealthStub(server.channel)
    states = {"": SERVING, "demo": SERVING, "demo@2": SERVING, "demo@3": NOT_SERVING}
    for service, state in states.items():
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request, timeout=WAIT_S).status == state
    with pytest.raises(grpc.RpcError):
        health.Check(health_pb2.HealthCheckRequest(service="nothing"), timeout=WAIT_S)


def test_the_http_port_answers_and_outlives_nonsense(server: Running) -> None:
    assert get(server, "/healthz") == (200, "alive\n")
    assert get(server, "/readyz") == (200, "ready\n")
    assert get(server, "/readyz", "HEAD") == (200, "")
    assert get(server, "/secrets")[0] == 404
    assert get(server, "/metrics", "POST")[0] == 405
    address = ("127.0.0.1", server.server.http_port)
    for sent in (b"\r\n\r\n", b"\xff" * 40_000, b"GET\r\n\r\n", b""):
        reply = b""
        with socket.create_connection(address, timeout=WAIT_S) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                reply = connection.recv(1 << 16)
        assert reply == b"" or reply.startswith(b"HTTP/1.1 400")
        assert get(server, "/healthz")[0] == 200


def test_requests_are_counted_by_version_and_alias_that_there_are(server: Running) -> None:
    routed = {("demo@2", "2", ""), ("demo:canary", "2", "canary"), ("demo:stable", "1", "stable")}
    for model, version, alias in routed:
        by_rpc = f'{{alias="{alias}",model="demo",rpc="TopK",version="{version}"}}'
        by_head = f'{{alias="{alias}",head="screen",model="demo",version="{version}"}}'
        series = (
            requests_total("TopK", "demo", "OK", version, alias),
            f"logitsieve_request_duration_seconds_count{by_rpc}",
            f"logitsieve_rows_total{by_head}",
        )
        before = [value(server, name) for name in series]
        assert server.client.topk(make_hidden(3), 5, model=model).answer.version == version
        after = [value(server, name) for name in series]
        assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 3]
    with pytest.raises(ModelNotFound):
        server.client.topk(make_hidden(1), 1, model="made-up-name")
    text = get(server, "/metrics")[1]
    assert "made-up-name" not in text
    assert 'code="NOT_FOUND",model="unknown"' in text


def send(server: Running) -> Any:
    call = server.channel.unary_unary("/logitsieve.v1.Decoder/TopK")
    return call.future(LARGE_REQUEST.SerializeToString(), timeout=WAIT_S)


def test_overload(tight: Running, gate: Gate) -> None:
    gate.shut()
    futures, ended = [send(tight) for _ in range(3)], SimpleQueue[Any]()
    for future in futures:
        future.add_done_callback(ended.put)
    refused = ended.get(timeout=WAIT_S)
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert ("grpc-retry-pushback-ms", "50") in [tuple(pair) for pair in refused.trailing_metadata()]
    with pytest.raises(Overloaded) as caught:
        tight.client.topk(LARGE, 3, model="demo")
    assert caught.value.retry_after_s == 0.05
    assert value(tight, 'logitsieve_requests_rejected_total{reason="in_flight"}') >= 2
    gate.open()
    assert all(future.result(WAIT_S) for future in futures if future is not refused)
    assert tight.client.topk(LARGE, 3, model="demo").ids.shape == (64, 3)


def test_a_request_too_late_in_the_queue_is_never_computed(tight: Running, gate: Gate) -> None:
    gate.shut()
    first = send(tight)
    gate.wait_entered()
    with DecoderClient(tight.address, timeout_s=0.2) as hasty, pytest.raises(DeadlineExceeded):
        hasty.topk(LARGE, 3, model="demo")
    gate.open()
    assert first.result(WAIT_S)
    assert tight.client.topk(LARGE, 3, model="demo").answer.queue_ns > 0
    assert gate.computed == 2


def test_a_wait_that_only_the_client_knows_is_told_to_it_and_counted_apart(tight: Running) -> None:
    call = tight.channel.unary_unary("/logitsieve.v1.Decoder/TopK")
    message = call(
        LARGE_REQUEST.SerializeToString(), timeout=WAIT_S, metadata=((TIMEOUT, "9999999"),)
    )
    assert pb.TopKResponse.FromString(message).answer.queue_ns > MOST_TOLD_NS
    told_s = MOST_TOLD_NS * 1e-9
    assert value(tight, 'logitsieve_told_wait_seconds_sum{model="demo"}') == told_s
    assert 0 < value(tight, 'logitsieve_queue_seconds_sum{model="demo"}') < told_s
    labels = '{alias="",model="demo",rpc="TopK",version="1"}'
    assert 0 < value(tight, f"logitsieve_request_duration_seconds_sum{labels}") < told_s


def test_a_refusal_for_what_a_client_says_is_counted_apart(tight: Running) -> None:
    call = tight.channel.unary_unary("/logitsieve.v1.Decoder/TopK")
    with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
        call(LARGE_REQUEST.SerializeToString(), timeout=3, metadata=((TIMEOUT, "9000"),))
    assert value(tight, 'logitsieve_requests_rejected_total{reason="told_wait"}') == 1
    assert value(tight, 'logitsieve_requests_rejected_total{reason="in_flight"}') == 0


def test_stopping_finishes_what_is_in_flight_alone(loop: Loop, serve: Serve, gate: Gate) -> None:
    with serve(gate, drain_s=WAIT_S) as run:
        watch = HealthStub(run.channel).Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
        assert next(watch).status == SERVING
        idle, busy = RawStream(run.channel), RawStream(run.channel)
        assert idle.ask(pb.DecodeRequest(id=1)).id == 1
        gate.shut()
        first = send(run)
        gate.wait_entered()
        busy.send(asked("TopK", 1, LARGE_REQUEST), pb.DecodeRequest(id=2))
        assert busy.receive().id == 2  # so 1 has been taken
        stopping = loop.start(run.server.stop())
        assert next(watch).status == NOT_SERVING
        assert_stopped(idle)
        assert get(run, "/healthz") == (200, "draining\n")
        assert get(run, "/readyz") == (503, "draining\n")
        with pytest.raises(Unavailable):
            run.client.topk(LARGE, 3, model="demo")
        assert not stopping.done()
        gate.open()
        assert first.result(WAIT_S)
        assert busy.receive().top_k.ids.rows == len(LARGE)
        assert_stopped(busy)
        stopping.result(WAIT_S)
        assert list(watch) == []
        run.server._publish()  # as the end of a load would: it is not said to serve again
        check = run.server._health.check(b"", None)
        assert health_pb2.HealthCheckResponse.FromString(loop.run(check)).status == NOT_SERVING


def assert_stopped(stream: RawStream) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stream.receive()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "stopping" in error_of(caught.value).message
    stream.half_close()


@pytest.mark.parametrize("option", ["port", "http_port", "admin_port"])
def test_a_port_that_is_taken(loop: Loop, server: Running, models: Path, option: str) -> None:
    taken = {"port": 0, "http_port": 0, "admin_port": 0, option: getattr(server.server, option)}
    second = create_server(ServeConfig(model_repository=models, **taken))
    with refused(option, "free"):
        loop.run(second.start())
    loop.run(second.stop())


def test_not_ready_where_everything_failed(loop: Loop, tmp_path: Path) -> None:
    (tmp_path / "demo" / "1").mkdir(parents=True)
    with running(loop, config_for(tmp_path)) as run:
        assert get(run, "/readyz")[0] == 503
        assert get(run, "/healthz")[0] == 200
        assert [model.state for model in run.client.models()] == ["failed"]
        request = health_pb2.HealthCheckRequest(service="demo")
        assert HealthStub(run.channel).Check(request, timeout=WAIT_S).status == NOT_SERVING


def test_progress_is_told(loop: Loop, tmp_path: Path) -> None:
    write_model(tmp_path)
    told: list[str] = []
    server = create_server(config_for(tmp_path))
    loop.run(server.start(lambda stage, done, total: told.append(stage)), START_S)
    loop.run(server.stop())
    assert {"demo@1 verify", "demo@1 warm"} <= set(told)
