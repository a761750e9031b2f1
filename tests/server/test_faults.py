"""What goes wrong around a server: it is told to stop or killed, clients vanish or do not read,
descriptors run out. No call of a client with our settings fails, and no answer is wrong.
"""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from logitsieve.api.results import TopKReply
from logitsieve.client import DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.conftest import Serve
from tests.server.materials import Gate
from tests.server.messages import LARGE_REQUEST, TARGET, RawStream, asked
from tests.server.running import WAIT_S, lasting_port, started, write_model
from tests.server.test_app import value
from tests.synthetic import make_hidden

pytestmark = pytest.mark.system  # servers are started and killed

VANISHING = """
import os, sys
from threading import Event
import grpc
message = bytes.fromhex(sys.argv[2])
channel = grpc.insecure_channel(sys.argv[1])
def messages():
    for _ in range(8):
        yield message
    print("sent", flush=True)
    Event().wait()
call = channel.stream_stream("/logitsieve.v1.Decoder/Decode")(messages())
sys.stdin.readline()
os._exit(1)
"""
CALLERS = 3
HIDDEN = make_hidden(64)
DESCRIPTORS = 64


def assert_right(reply: TopKReply, expected: TopKReply) -> None:
    np.testing.assert_array_equal(reply.ids, expected.ids)
    np.testing.assert_array_equal(reply.logits, expected.logits)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_model(tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture
def expected(models: Path) -> TopKReply:
    return LocalDecoder(open_index(models / "demo" / "1")).topk(HIDDEN, 5)


def test_no_call_fails_while_two_servers_are_restarted_in_turn(
    models: Path, kernel_cache: Path, expected: TopKReply
) -> None:
    over = Event()

    def call() -> int:
        assert_right(client.topk(HIDDEN, 5), expected)
        return 1

    def keep_calling() -> int:
        calls = 0
        while not over.is_set():
            calls += call()
        return calls

    def call_until(done: Callable[[], bool]) -> None:
        while not done():
            call()

    with ExitStack() as stack:
        servers = [
            stack.enter_context(started(models, kernel_cache, port=lasting_port()))
            for _ in range(2)
        ]
        both = "ipv4:" + ",".join(server.address for server in servers)
        client = stack.enter_context(DecoderClient(both, timeout_s=WAIT_S))
        pool = stack.enter_context(ThreadPoolExecutor(CALLERS + 1))
        stack.callback(over.set)
        callers = [pool.submit(keep_calling) for _ in range(CALLERS)]
        for server, sent in zip(servers, (signal.SIGTERM, signal.SIGKILL), strict=True):
            call_until(server.has_answered)
            server.process.send_signal(sent)
            call_until(server.has_left)
            again = pool.submit(
                stack.enter_context, started(models, kernel_cache, port=server.port)
            )
            call_until(again.done)
            call_until(again.result().has_answered)  # before the next one goes
        over.set()
        assert all(caller.result(WAIT_S) > 0 for caller in callers)


def test_a_client_that_vanishes_takes_along_what_has_not_begun(
    serve: Serve, gate: Gate, expected: TopKReply
) -> None:
    with serve(gate) as run:
        gate.shut()
        message = asked("TopK", 1, LARGE_REQUEST).SerializeToString().hex()
        with subprocess.Popen(
            [sys.executable, "-c", VANISHING, run.address, message],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "sent\n"
            gate.wait_entered()
            client.communicate("vanish\n", timeout=WAIT_S)
        while value(run, "logitsieve_queue_rows"):
            pass
        gate.open()
        assert_right(run.client.topk(HIDDEN, 5, model="demo"), expected)
        assert gate.computed <= 2 + 1  # the batch under way, perhaps one more, and this call


def test_who_does_not_read_holds_up_nobody_and_loses_nothing(
    serve: Serve, expected: TopKReply
) -> None:
    messages = 500
    with serve() as run:
        slow = RawStream(run)
        request = pb.TopKRequest(target=TARGET, hidden=LARGE_REQUEST.hidden, k=200)
        slow.send(*(asked("TopK", number, request) for number in range(messages)))
        for _ in range(20):
            assert_right(run.client.topk(HIDDEN, 5, model="demo"), expected)
        slow.half_close()
        replies = slow.rest()
        assert {reply.id for reply in replies} == set(range(messages))
        assert len({reply.top_k.ids.data for reply in replies}) == 1


def test_a_server_out_of_descriptors_answers_who_is_connected_and_recovers(
    models: Path, kernel_cache: Path, expected: TopKReply
) -> None:
    with started(models, kernel_cache, files=DESCRIPTORS) as server:
        with DecoderClient(server.address, timeout_s=WAIT_S) as client:
            assert_right(client.topk(HIDDEN, 5), expected)
            with ExitStack() as idle:
                for _ in range(2 * DESCRIPTORS):
                    idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                for _ in range(20):
                    assert_right(client.topk(HIDDEN, 5), expected)
        with DecoderClient(server.address, timeout_s=WAIT_S) as another:
            assert_right(another.topk(HIDDEN, 5), expected)
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=WAIT_S)
        assert server.process.returncode == 0
