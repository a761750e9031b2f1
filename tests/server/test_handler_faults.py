"""A fault at every function of every handler and after every await: its call alone fails.

It fails by INTERNAL with an incident, or 500; nothing hangs, and nothing stays counted.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import grpc
import httpx2
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from tritonclient.grpc import service_pb2 as kserve

from logitsieve.api.errors import ModelNotFound
from logitsieve.client import AdminClient
from logitsieve.server import Server
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import TIMEOUT
from tests.server.faults import Walk
from tests.server.materials import write_api_keys
from tests.server.messages import GOOD, GOOD_INPUTS, asked, changed
from tests.server.running import WAIT_S, Loop, config_for, running, write_model

# Coroutines that were made and not awaited, sockets of connections that were never made.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FOLDER = str(Path(sys.modules[Server.__module__].__file__ or "").parent)
# Entered by gRPC or an event loop, with nothing of ours around them.
CALLED_BY_OTHERS = {
    "Entrance.service",
    "Intake.sweep",
    "Intake._sweep_soon",
    "PatientProtocol.connection_lost",
    "_strict",
    "_strict.<locals>.<listcomp>",
}
# The guard itself, and functions that give back what a call holds: nothing could in their place.
LAST = {"safe", "leave", "free", "_count", "_next", "__exit__", "<genexpr>"}
KEY = "token-of-yesterday"
TOLD = (
    ("authorization", f"Bearer {KEY}"),
    ("x-request-id", "1"),
    (TIMEOUT, f"{1000 * WAIT_S:.0f}"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect them here, where their warnings are ignored, not in a later test."""
    yield
    gc.collect()


def walked(frame: FrameType) -> bool:
    code = frame.f_code
    if not code.co_filename.startswith(FOLDER) or "scheduling" in code.co_filename:
        return False
    begins = frame.f_lineno == code.co_firstlineno
    return not (code.co_name in LAST or (begins and code.co_qualname in CALLED_BY_OTHERS))


class Ports(NamedTuple):
    server: Server
    loop: Loop
    public: grpc.Channel
    admin: grpc.Channel

    def trace(self, walk: Walk | None) -> None:
        async def begin() -> None:
            asyncio.get_running_loop().call_soon(sys.settrace, walk)

        self.loop.run(begin())

    def wait_idle(self) -> None:
        value = self.server.metrics.registry.get_sample_value
        while value("logitsieve_requests_in_flight") or value("logitsieve_queue_rows"):
            pass

    def call(self, method: str, request: Any, told: Any = TOLD) -> str:
        """Return a status code; the text of an error that nobody foresaw names its incident."""
        channel = self.admin if "Admin" in method else self.public
        call: Any = channel.unary_unary(f"/{method}")
        outcome = call.future(request.SerializeToString(), timeout=WAIT_S, metadata=told)
        code = str(outcome.code().name)
        assert code != "INTERNAL" or outcome.details().startswith("internal error, incident")
        return code


@pytest.fixture(scope="module")
def ports(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    folder = tmp_path_factory.mktemp("faults")
    write_model(folder / "models")
    api_keys = write_api_keys(folder, f"admin:{KEY}\n")
    config = config_for(folder / "models", api_key_file=api_keys, console=False)
    with running(loop, config) as run:
        options = [("grpc.enable_retries", 0)]
        address = f"127.0.0.1:{run.server.admin_port}"
        with grpc.insecure_channel(address, options) as admin:
            yield Ports(run.server, loop, run.channel, admin)


def unary(method: str, request: Any, told: Any = TOLD) -> Callable[[Ports], str]:
    return lambda ports: ports.call(method, request, told)


def stream(ports: Ports) -> str:
    """Two messages, and the last is a bad one: the codes of their replies, or of the stream."""
    sent = [asked("TopK", 1), pb.DecodeRequest(id=2)]
    decode = ports.public.stream_stream("/logitsieve.v1.Decoder/Decode")
    call = decode(iter([one.SerializeToString() for one in sent]), timeout=WAIT_S, metadata=TOLD)
    try:
        codes = [pb.DecodeResponse.FromString(reply).error.code for reply in call]
    except grpc.RpcError as failure:
        return str(failure.code().name)
    assert len(codes) == len(sent)
    return "INTERNAL" if grpc.StatusCode.INTERNAL.value[0] in codes else "OK"


def http(path: str) -> Callable[[Ports], str]:
    def scene(ports: Ports) -> str:
        url = f"http://127.0.0.1:{ports.server.http_port}{path}"
        try:
            reply = httpx2.get(url, timeout=WAIT_S, verify=False)
        except httpx2.TransportError:
            return "INTERNAL"  # cut off
        assert reply.status_code == 200 or reply.text.startswith("internal error, incident")
        return "OK" if reply.status_code == 200 else "INTERNAL"

    return scene


DECODER, ADMIN = "logitsieve.v1.Decoder", "logitsieve.v1.Admin"
KSERVE = "inference.GRPCInferenceService"
INFER = kserve.ModelInferRequest(model_name="demo", inputs=GOOD_INPUTS)
ALIAS = pb.SetAliasRequest(name="demo", version="1", alias="a")
SCENES: dict[str, Callable[[Ports], str]] = {
    **{rpc: unary(f"{DECODER}/{rpc}", request) for rpc, request in GOOD.items()},
    "a bad one": unary(f"{DECODER}/TopK", changed("TopK", k=0)),
    "without a key": unary(f"{DECODER}/TopK", GOOD["TopK"], ()),
    "stream": stream,
    "Get": unary("logitsieve.v1.Models/Get", pb.GetModelRequest(model="demo")),
    "List": unary("logitsieve.v1.Models/List", pb.ListModelsRequest()),
    "health": unary("grpc.health.v1.Health/Check", HealthCheckRequest(), ()),
    "ModelInfer": unary(f"{KSERVE}/ModelInfer", INFER),
    **{
        f"Model{what}": unary(f"{KSERVE}/Model{what}", request(name="demo"))
        for what, request in (
            ("Metadata", kserve.ModelMetadataRequest),
            ("Config", kserve.ModelConfigRequest),
            ("Statistics", kserve.ModelStatisticsRequest),
        )
    },
    "Load": unary(f"{ADMIN}/Load", pb.LoadRequest(name="demo", version="1")),
    "SetAlias": unary(f"{ADMIN}/SetAlias", ALIAS),
    **{path: http(path) for path in ("/healthz", "/readyz", "/metrics")},
}


@pytest.mark.parametrize("name", SCENES)
def test_a_fault_anywhere_fails_its_call_alone(ports: Ports, name: str) -> None:
    scene, good = SCENES[name], SCENES["TopK"]
    usual = scene(ports)
    for number in count(1):
        walk = Walk(number, walked)
        ports.trace(walk)
        try:
            outcome = scene(ports)
        finally:
            walk.end()
            ports.trace(None)
        assert outcome in (usual, "INTERNAL"), walk.at
        assert good(ports) == "OK", walk.at
        ports.wait_idle()
        if not walk.at:
            return


def test_no_fault_has_kept_a_version_in_use(ports: Ports) -> None:
    """Runs last: an unloaded version is closed once its last request has left."""
    client = AdminClient(f"127.0.0.1:{ports.server.admin_port}", api_key=KEY)
    with client:
        with suppress(ModelNotFound):
            client.set_alias("demo", "a", None)
        assert client.unload("demo", 1).state == "unspecified"
