"""The server as a process: it starts, says where, and leaves quietly."""

import json
import signal
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from logitsieve.api.errors import LogitsieveError
from logitsieve.client import DecoderClient
from logitsieve.kernels import compile as kernels
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.materials import authority, signed_by
from tests.server.running import WAIT_S, WHERE, process, said_by, started, write_model
from tests.server.test_flood import AGREED, MESSAGE
from tests.synthetic import make_hidden
from tools.chaos.hostile import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, block, frame

PING, PINGED = 6, b"are you?"
HALF = MESSAGE[:100]
PATHS = [
    *(b"/logitsieve.v1.Decoder/TopK", b"/logitsieve.v1.Decoder/Decode"),
    *(b"/grpc.health.v1.Health/Check", b"/grpc.health.v1.Health/Watch"),
]


OTHERS = [
    pytest.param(one, marks=pytest.mark.exhaustive) for one in (signal.SIGTERM, signal.SIGHUP)
]
SENT = pytest.mark.parametrize("sent", [signal.SIGINT, *OTHERS])

HELD = """
import sys
from pathlib import Path
from threading import Event, current_thread
from logitsieve.server import ServeConfig, serve
from logitsieve.server.models.repository import Repository
from tests.server.materials import Gate, gated
class Stuck(Gate):
    def through(self):
        if current_thread().name.startswith("logitsieve-"):  # the pool's
            Event().wait()
def opener(*given):
    print("loading", file=sys.stderr, flush=True)
    Event().wait()
models, cache, what, drain_s = sys.argv[1:]
ports = {"port": 0, "http_port": 0, "admin_port": 0}
more = {"kernel_cache": Path(cache), "drain_s": float(drain_s)}
config = ServeConfig(model_repository=Path(models), **ports, **more)
loading = what == "loading"
serve(config, repository=Repository(config, opener) if loading else gated(config, Stuck()))
"""


def held(models: Path, what: str, drain_s: float) -> AbstractContextManager[Popen[str]]:
    """A server that loads or computes for ever."""
    return process("-c", HELD, models, kernels.default_cache(), what, drain_s)


@pytest.mark.system
@SENT
def test_its_port_is_refused_to_another_and_it_leaves_with_0_if_told(
    tmp_path: Path, sent: signal.Signals
) -> None:
    write_model(tmp_path)
    with started(tmp_path) as server, DecoderClient(server.address, timeout_s=WAIT_S) as client:
        assert client.topk(make_hidden(1), 3).ids.shape == (1, 3)
        assert 'head="screen",model="demo",version="1"} 1.0' in server.page()
        with pytest.raises(AssertionError) as caught, started(tmp_path, port=server.port):
            pass
        *_, reason, code = str(caught.value).splitlines()
        assert f"InvalidRequest: port: got {server.address}, which is in use" in reason
        assert code == "exit code 1"
        assert "add_port.cc" not in str(caught.value)
        server.process.send_signal(sent)
        rest = server.process.communicate(timeout=WAIT_S)[1]
    assert server.process.returncode == 0
    assert rest == "stopping: 10 s for what is in flight\nstopped\n"


@pytest.mark.system
def test_a_log_of_json_holds_nothing_else(tmp_path: Path) -> None:
    """The options come from the environment; a client that speaks no TLS lets gRPC's core write."""
    write_model(tmp_path)
    cert, key = signed_by(authority()).write(tmp_path)
    given: dict[str, object] = {"MODEL_REPOSITORY": tmp_path, "LOG_FORMAT": "json"}
    given |= {"KERNEL_CACHE": kernels.default_cache(), "TLS_KEY": key, "TLS_CERT": cert}
    given |= dict.fromkeys(("ADMIN", "PORT", "HTTP_PORT"), 0)
    environment = {f"LOGITSIEVE_SERVE_{name}": str(value) for name, value in given.items()}
    with process("-m", "logitsieve", "serve", **environment) as server:
        assert server.stderr is not None
        lines = []
        for text in server.stderr:
            lines.append(json.loads(text))
            if lines[-1]["event"] == "start":
                break
        host, _, port = lines[-1]["grpc"].rpartition(":")
        with socket.create_connection((host, int(port)), WAIT_S) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            client.recv(1)
        server.send_signal(signal.SIGTERM)
        rest = server.communicate(timeout=WAIT_S)[1].splitlines()
    lines += map(json.loads, rest)
    assert [line["event"] for line in lines][-2:] == ["stopping", "stopped"]


@pytest.mark.system
def test_malformed_headers_leave_a_line_at_most(tmp_path: Path) -> None:
    write_model(tmp_path)
    options = {"model-repository": tmp_path, "port": 0, "http-port": 0, "drain-s": 0}
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    cache = {"LOGITSIEVE_SERVE_KERNEL_CACHE": str(kernels.default_cache())}
    with process("-m", "logitsieve", "serve", "--no-admin", *given, **cache) as server:
        _, _, port = said_by(server, WHERE)[1].rpartition(":")
        headers = (b"grpc-timeout", b"soon"), (b"x-request-id", b"\xff")
        answers = [called(int(port), block(PATHS[0], *header)) for header in headers]
        assert b"grpc-timeout" in answers[0]
        assert b"InvalidRequest" not in answers[1]
        server.send_signal(signal.SIGTERM)
        rest = server.communicate(timeout=WAIT_S)[1].splitlines()
    assert "a header of a call is no UTF-8" in rest
    failed = "TopK of unknown failed: INVALID_ARGUMENT "
    others = {line for line in rest if not line.startswith(failed)}
    assert others == {
        "a header of a call is no UTF-8",
        "stopping: 0 s for what is in flight",
        "stopped",
    }


def called(port: int, headers: bytes) -> bytes:
    """What the server says to a call with these headers."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as client:
        call = frame(HEADERS, END_HEADERS, 1, headers) + frame(DATA, END_STREAM, 1, MESSAGE)
        client.sendall(PREFACE + AGREED + call)
        said = b""
        while b"grpc-status" not in said:
            part = client.recv(1 << 16)
            assert part, said
            said += part
        return said


@pytest.mark.system
def test_calls_without_a_message_do_not_delay_its_end(tmp_path: Path) -> None:
    write_model(tmp_path)
    with (
        started(tmp_path, drain_s=10 * WAIT_S) as server,
        socket.create_connection(("127.0.0.1", server.port), WAIT_S) as client,
    ):
        calls = [
            frame(HEADERS, END_HEADERS, stream, block(path)) + frame(DATA, 0, stream, HALF)
            for stream, path in zip(range(1, 25, 2), 3 * PATHS, strict=True)
        ]
        client.sendall(PREFACE + AGREED + b"".join(calls) + frame(PING, 0, 0, PINGED))
        said = b""
        while PINGED not in said:
            said += client.recv(1 << 16)
        with DecoderClient(server.address, timeout_s=WAIT_S) as other:
            other.models()  # by then the event loop has met them
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=WAIT_S)
    assert server.process.returncode == 0


def ask_and_leave(address: str) -> None:
    with DecoderClient(address, timeout_s=0.2) as client, pytest.raises(LogitsieveError):
        client.topk(make_hidden(64), 3)


@pytest.mark.system
@pytest.mark.parametrize("what", ["loading", "computing"])
def test_it_leaves_whatever_still_runs_in_it(tmp_path: Path, what: str) -> None:
    write_model(tmp_path)
    with held(tmp_path, what, drain_s=0.0) as server:
        if what == "computing":
            ask_and_leave(said_by(server, WHERE)[1])
        else:
            assert server.stderr is not None
            assert server.stderr.readline() == "loading\n"
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=WAIT_S)
    assert server.returncode == 0


@pytest.mark.system
@SENT
def test_a_second_signal_ends_it(tmp_path: Path, sent: signal.Signals) -> None:
    write_model(tmp_path)
    with (
        held(tmp_path, "computing", drain_s=10 * WAIT_S) as server,
        grpc.insecure_channel(said_by(server, WHERE)[1]) as channel,
    ):
        message = pb.TopKRequest(hidden_states=put(pb.Tensor(), make_hidden(64)), k=3)
        call = channel.unary_unary("/logitsieve.v1.Decoder/TopK")
        asked = call.future(message.SerializeToString())
        stub = HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status
        server.send_signal(signal.SIGTERM)
        assert server.stderr is not None
        assert server.stderr.readline().startswith("stopping")
        server.send_signal(sent)
        server.wait(WAIT_S)
        asked.cancel()
    assert server.returncode == -sent
