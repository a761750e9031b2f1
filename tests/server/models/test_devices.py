"""A server on a GPU: it answers as on the host, tells of a full one, leaves with a lost one."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from prometheus_client import CollectorRegistry, generate_latest

from logitsieve.api.errors import DeviceExhausted, DeviceLost, Overloaded, Unavailable
from logitsieve.client import AdminClient, DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.gpu.device import Memory
from logitsieve.index import Index, open_index
from logitsieve.kernels import compile as kernels
from logitsieve.server import ServeConfig, create_server
from logitsieve.server.metrics import Devices
from logitsieve.server.models.repository import Opened, Repository, open_configured
from logitsieve.server.rpc.status import EXHAUSTED_RETRY_MS, PUSHBACK
from tests.refusals import refused
from tests.server.materials import Gate
from tests.server.messages import LARGE, LARGE_REQUEST
from tests.server.running import (
    START_S,
    WAIT_S,
    WHERE,
    Loop,
    Running,
    config_for,
    process,
    running,
    said_by,
)
from tests.server.test_app import get, value
from tests.synthetic import make_hidden, make_softmax, write_heads

LOST = DeviceLost("cuda:0", "CUDA error: unspecified launch failure")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_heads(folder / "demo" / "1", make_softmax())
    return folder


@pytest.fixture(scope="module")
def on_gpu(loop: Loop, models: Path) -> Iterator[Running]:
    config = config_for(models, device="cuda", threads=2)
    with running(loop, config) as run:
        yield run


def test_a_server_answers_on_a_gpu_as_on_the_host(on_gpu: Running, models: Path) -> None:
    hidden_states, batches = make_hidden(3), value(on_gpu, "logitsieve_batch_rows_count")
    host = LocalDecoder(open_index(models / "demo" / "1")).topk(hidden_states, 5)
    top = on_gpu.client.topk(hidden_states, 5, model="demo")
    np.testing.assert_array_equal(top.ids, host.ids)
    np.testing.assert_array_equal(top.logits, host.logits)
    assert get(on_gpu, "/readyz")[0] == 200
    # However small it is: the loop does not wait for a GPU.
    assert value(on_gpu, "logitsieve_batch_rows_count") == batches + 1
    info = re.findall(r'index_info{device="(.+?)".*model="(.+?)"', get(on_gpu, "/metrics")[1])
    assert info == [("cuda", "demo")]


def test_a_gpu_that_is_not_there_is_said_before_anything_loads(
    loop: Loop, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with refused("device", r"device: got 'cuda:99', allowed: cpu"):
        loop.run(create_server(config_for(models, device="cuda:99")).start(), START_S)


def test_the_memory_of_the_gpu_by_its_own_name() -> None:
    registry = CollectorRegistry()
    Devices("cuda", registry, {"cuda": ("cuda:0", Memory(3, 8))}.__getitem__)
    lines = generate_latest(registry).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'logitsieve_device_memory_used_bytes{device="cuda:0"} 3.0',
        'logitsieve_device_memory_bytes{device="cuda:0"} 8.0',
    ]


def test_a_full_gpu_is_an_overload_and_the_server_lives(tight: Running, gate: Gate) -> None:
    gate.failure = DeviceExhausted("cuda:0")
    with pytest.raises(grpc.RpcError) as caught:
        tight.raw("Decoder/TopK", LARGE_REQUEST.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (PUSHBACK, str(EXHAUSTED_RETRY_MS)) in caught.value.trailing_metadata()
    with pytest.raises(Overloaded, match="cuda:0: out of memory"):
        tight.client.topk(LARGE, 5, model="demo")
    gate.failure = None
    assert tight.client.topk(LARGE, 5, model="demo").ids.shape == (64, 5)
    assert value(tight, 'logitsieve_requests_rejected_total{reason="device_memory"}') >= 2
    assert get(tight, "/readyz")[0] == 200


def test_with_a_lost_gpu_nothing_is_served(tight: Running, gate: Gate) -> None:
    gate.failure = LOST
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        tight.raw("Decoder/TopK", LARGE_REQUEST.SerializeToString())
    tight.loop.run(tight.server.losing.wait())
    assert tight.server.lost is LOST
    assert get(tight, "/readyz")[0] == 503
    watch = HealthStub(tight.channel).Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
    next(watch)
    tight.loop.run(tight.server.stop())
    assert [reply.status for reply in watch] == [health_pb2.HealthCheckResponse.NOT_SERVING]


def failing(path: Path, config: ServeConfig, progress: Any) -> Index:
    raise LOST


def test_a_gpu_lost_at_the_start_ends_it(loop: Loop, models: Path) -> None:
    config = config_for(models)
    server = create_server(config, repository=Repository(config, failing))
    with pytest.raises(DeviceLost):
        loop.run(server.start(), START_S)
    loop.run(server.stop())


def test_a_gpu_lost_by_a_load_ends_the_server(loop: Loop, models: Path) -> None:
    first = True

    def opener(path: Path, config: ServeConfig, progress: Any) -> Opened:
        return (open_configured if first else failing)(path, config, progress)

    config = config_for(models)
    with running(loop, config, Repository(config, opener)) as run:
        first = False
        lost, address = pytest.raises(Unavailable), f"127.0.0.1:{run.server.admin_port}"
        with AdminClient(address, timeout_s=WAIT_S) as admin, lost:
            admin.load("demo", 1)
        loop.run(run.server.losing.wait())
        assert run.server.lost is LOST


LOSING = """
import sys
from pathlib import Path
from threading import Thread
from logitsieve.server import ServeConfig, serve
from logitsieve.api.errors import DeviceLost
from tests.server.materials import Gate, gated

def lose():
    sys.stdin.readline()
    gate.failure = DeviceLost("cuda:0", "CUDA error: unspecified launch failure")

gate = Gate()
Thread(target=lose, daemon=True).start()
config = ServeConfig(
    model_repository=Path(sys.argv[1]),
    kernel_cache=Path(sys.argv[2]),
    port=0,
    http_port=0,
    admin=False,
)
serve(config, repository=gated(config, gate))
"""


def keep_asking(client: DecoderClient) -> None:
    while True:
        client.topk(LARGE, 5, model="demo")


@pytest.mark.system
def test_the_process_leaves_with_a_lost_gpu(models: Path) -> None:
    with process("-c", LOSING, models, kernels.default_cache()) as server:
        with DecoderClient(said_by(server, WHERE)[1], timeout_s=WAIT_S) as client:
            assert client.topk(LARGE, 5, model="demo").ids.shape == (64, 5)
            assert server.stdin is not None
            server.stdin.write("\n")
            server.stdin.flush()
            with pytest.raises(Unavailable):
                keep_asking(client)
        said = server.communicate(timeout=WAIT_S)[1]
    assert server.returncode == 1
    assert said.startswith("cuda:0: CUDA error: unspecified launch failure\n")
    assert "\nstopped\n" in said
    assert said.splitlines()[-1].startswith("logitsieve.api.errors.DeviceLost")
