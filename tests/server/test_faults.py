"""What goes wrong around a server: it is told to stop or killed, a client does not read, a file is
cut. No call of a client with our settings fails, and no answer is wrong.
"""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from logitsieve.api.errors import ModelNotFound
from logitsieve.api.results import TopKReply
from logitsieve.client import DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.conftest import Serve
from tests.server.messages import LARGE_REQUEST, SPEC, RawStream, asked
from tests.server.running import WAIT_S, lasting_port, started, write_model
from tests.synthetic import make_hidden

pytestmark = pytest.mark.system  # servers are started and killed

CALLERS = 3
HIDDEN = make_hidden(64)


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


def test_no_call_fails_while_servers_restart_in_turn(models: Path, expected: TopKReply) -> None:
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
        servers = [stack.enter_context(started(models, port=lasting_port())) for _ in range(2)]
        both = "ipv4:" + ",".join(server.address for server in servers)
        client = stack.enter_context(DecoderClient(both, timeout_s=WAIT_S))
        pool = stack.enter_context(ThreadPoolExecutor(CALLERS + 1))
        stack.callback(over.set)
        callers = [pool.submit(keep_calling) for _ in range(CALLERS)]
        for server, sent in zip(servers, (signal.SIGTERM, signal.SIGKILL), strict=True):
            call_until(server.has_answered)
            server.process.send_signal(sent)
            call_until(server.has_left)
            anew = started(models, port=server.port)
            again = pool.submit(stack.enter_context, anew)
            call_until(again.done)
            call_until(again.result().has_answered)  # before the next one goes
        over.set()
        assert all(caller.result(WAIT_S) > 0 for caller in callers)


def test_who_does_not_read_delays_none_and_loses_nothing(serve: Serve, expected: TopKReply) -> None:
    messages = 500
    with serve() as run:
        slow = RawStream(run.channel)
        request = pb.TopKRequest(model_spec=SPEC, hidden_states=LARGE_REQUEST.hidden_states, k=200)
        slow.send(*(asked("TopK", number, request) for number in range(messages)))
        for _ in range(20):
            assert_right(run.client.topk(HIDDEN, 5, model="demo"), expected)
        slow.half_close()
        replies = slow.rest()
        assert {reply.id for reply in replies} == set(range(messages))
        assert len({reply.top_k.ids.data for reply in replies}) == 1


def test_a_file_that_is_cut_ends_its_version_alone(models: Path, expected: TopKReply) -> None:
    write_model(models, version=2)
    with (
        started(models) as server,
        DecoderClient(server.address, timeout_s=WAIT_S) as client,
        ThreadPoolExecutor(CALLERS) as pool,
    ):

        def call_until_it_fails() -> str:
            while True:
                assert_right(client.topk(HIDDEN, 5, model="demo@1"), expected)
                try:
                    client.topk(HIDDEN, 5, model="demo@2", exact=True)
                except ModelNotFound as error:
                    return str(error)

        callers = [pool.submit(call_until_it_fails) for _ in range(CALLERS)]
        os.truncate(models / "demo" / "2" / "softmax.safetensors", 100)
        for caller in callers:
            assert "softmax.safetensors" in caller.result(WAIT_S)
        assert_right(client.topk(HIDDEN, 5, model="demo@1"), expected)
        assert not server.has_left()
