"""Every RPC under messages that no client of ours would send: only documented codes, never UNKNOWN
or INTERNAL, and the server answers a good request after each.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any, cast

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as kserve

from logitsieve.api.errors import LogitsieveError
from logitsieve.client import DecoderClient
from logitsieve.index import Index
from logitsieve.server import ServeConfig
from logitsieve.server.models.repository import Repository, open_configured
from logitsieve.utils.options import Progress
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.conftest import LIMITS
from tests.server.materials import Gate, GatedIndex
from tests.server.messages import (
    DOCUMENTED,
    GOOD,
    GOOD_INPUTS,
    HIDDEN_INPUT,
    Code,
    RawStream,
    asked,
    assert_alive,
    error_of,
    typed,
)
from tests.server.running import (
    WAIT_S,
    Administered,
    Loop,
    Running,
    administered,
    config_for,
    write_four,
)
from tests.synthetic import make_hidden
from tools.fuzz.feed import Feed, respell

DECODER, KSERVE = "logitsieve.v1.Decoder", "inference.GRPCInferenceService"
DRAWN = [
    HIDDEN_INPUT,
    typed("samples", "INT32", [1], int_contents=[2]),
    typed("seeds", "UINT64", [4], uint64_contents=[1, 2, 3, 4]),
]
# Good requests of every method, which are spoiled.
PUBLIC: dict[str, list[Message]] = {
    **{f"{DECODER}/{rpc}": [request] for rpc, request in GOOD.items()},
    "logitsieve.v1.Models/List": [pb.ListModelsRequest(page_size=2, page_token="demo@1")],
    "logitsieve.v1.Models/Get": [pb.GetModelRequest(model="demo")],
    f"{KSERVE}/ServerLive": [kserve.ServerLiveRequest()],
    f"{KSERVE}/ServerReady": [kserve.ServerReadyRequest()],
    f"{KSERVE}/ServerMetadata": [kserve.ServerMetadataRequest()],
    f"{KSERVE}/ModelReady": [kserve.ModelReadyRequest(name="demo", version="1")],
    f"{KSERVE}/ModelMetadata": [kserve.ModelMetadataRequest(name="demo", version="1")],
    f"{KSERVE}/ModelConfig": [kserve.ModelConfigRequest(name="demo", version="1")],
    f"{KSERVE}/ModelStatistics": [kserve.ModelStatisticsRequest(name="demo", version="1")],
    f"{KSERVE}/RepositoryIndex": [kserve.RepositoryIndexRequest(ready=True)],
    f"{KSERVE}/RepositoryModelLoad": [kserve.RepositoryModelLoadRequest(model_name="demo@1")],
    f"{KSERVE}/ModelInfer": [
        kserve.ModelInferRequest(model_name="demo", inputs=GOOD_INPUTS),
        kserve.ModelInferRequest(
            model_name="demo",
            inputs=DRAWN,
            parameters={"method": kserve.InferParameter(string_param="sample")},
            outputs=[kserve.ModelInferRequest.InferRequestedOutputTensor(name="ids")],
        ),
    ],
}
CHANGING: dict[str, list[Message]] = {
    "logitsieve.v1.Admin/Load": [pb.LoadRequest(name="demo", version="1", alias="canary")],
    "logitsieve.v1.Admin/Unload": [pb.UnloadRequest(name="demo", version="2", drain_ms=0)],
    "logitsieve.v1.Admin/SetAlias": [pb.SetAliasRequest(name="demo", version="1", alias="canary")],
    f"{KSERVE}/RepositoryModelLoad": [kserve.RepositoryModelLoadRequest(model_name="demo@1")],
    f"{KSERVE}/RepositoryModelUnload": [kserve.RepositoryModelUnloadRequest(model_name="demo@2")],
}
FED = st.binary(min_size=100, max_size=600)
# What else there is to say where versions come and go, or a message brings a timeout of its own.
ELSEWHERE = {Code.UNAVAILABLE, Code.PERMISSION_DENIED, Code.DEADLINE_EXCEEDED}


def seeded(most: int) -> settings:
    """The same messages in every run; a sixth of `most` but in `make test-all`."""
    return settings(max_examples=most * settings().max_examples // 300, derandomize=True)


class Elsewhere(GatedIndex):
    """An index on a device that only the pool computes with."""

    device = "elsewhere"


def elsewhere(path: Path, config: ServeConfig, progress: Progress) -> Index:
    return cast(Index, Elsewhere(cast(Index, open_configured(path, config, progress)), Gate()))


@contextmanager
def kept_busy(run: Running) -> Iterator[None]:
    """Two callers with long requests, so that every other one waits for the pool."""
    over, rows = Event(), make_hidden(256)

    def call() -> None:
        with DecoderClient(run.address, timeout_s=WAIT_S) as client:
            while not over.is_set():
                with suppress(LogitsieveError):  # it may be unloaded, or the queue full
                    client.sample(rows, 8, model="other", head="full")

    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        stack.callback(over.set)
        for _ in range(2):
            pool.submit(call)
        yield


@pytest.fixture(scope="module", params=["idle", "busy", "elsewhere"])
def fuzzed(
    request: pytest.FixtureRequest, loop: Loop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Administered]:
    config = config_for(write_four(tmp_path_factory.mktemp("fuzzed")), **LIMITS)
    repository = Repository(config, elsewhere) if request.param == "elsewhere" else None
    busy = request.param == "busy"
    with (
        administered(loop, config, repository) as served,
        kept_busy(served.run) if busy else nullcontext(),
    ):
        yield served


@pytest.fixture(scope="module")
def admin_channel(fuzzed: Administered) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(fuzzed.admin.address, [("grpc.enable_retries", 0)]) as channel:
        yield channel


def spoiled(good: Sequence[Message], fed: bytes) -> Any:
    """One of these messages, with the values that some bytes stand for in some of its fields."""
    feed = Feed(fed)
    return respell(good[feed.byte() % len(good)], feed)


def assert_documented(channel: grpc.Channel, path: str, message: bytes) -> None:
    call = channel.unary_unary(f"/{path}").future(message, timeout=WAIT_S)
    own = path.startswith((DECODER, "logitsieve.v1.Models"))
    assert call.code() in {Code.OK} | DOCUMENTED | (set() if own else ELSEWHERE), call
    if call.code() not in (Code.OK, Code.UNIMPLEMENTED):  # gRPC says the latter by itself
        assert error_of(call).message


@seeded(200)
@given(
    path=st.sampled_from([*PUBLIC, f"{DECODER}/None", "No/Such"]), message=st.binary(max_size=300)
)
def test_any_bytes(fuzzed: Administered, path: str, message: bytes) -> None:
    assert_documented(fuzzed.run.channel, path, message)
    assert_alive(fuzzed.run)


@seeded(300)
@given(
    rpc=st.sampled_from(list(GOOD)),
    place=st.integers(0, 1000),
    byte=st.integers(0, 255),
    cut=st.booleans(),
)
def test_spoiled_bytes(fuzzed: Administered, rpc: str, place: int, byte: int, cut: bool) -> None:
    good = GOOD[rpc].SerializeToString()
    place %= len(good)
    rest = b"" if cut else good[place + 1 :]
    spoiled = good[:place] + bytes([byte]) + rest
    assert_documented(fuzzed.run.channel, f"{DECODER}/{rpc}", spoiled)
    assert_alive(fuzzed.run)


@pytest.mark.parametrize("path", PUBLIC)
@seeded(100)
@given(fed=FED)
def test_any_fields(fuzzed: Administered, path: str, fed: bytes) -> None:
    assert_documented(fuzzed.run.channel, path, spoiled(PUBLIC[path], fed).SerializeToString())
    assert_alive(fuzzed.run)


@pytest.mark.parametrize("path", CHANGING)
@seeded(40)
@given(fed=FED, raw=st.none() | st.binary(max_size=30))
def test_any_fields_on_the_admin_port(
    fuzzed: Administered, admin_channel: grpc.Channel, path: str, fed: bytes, raw: bytes | None
) -> None:
    message = spoiled(CHANGING[path], fed).SerializeToString() if raw is None else raw
    assert_documented(admin_channel, path, message)
    fuzzed.admin.load("demo", 1, alias="stable")  # whatever was unloaded or renamed
    assert_alive(fuzzed.run)


@seeded(60)
@given(
    fed=st.lists(st.binary(min_size=50, max_size=200), min_size=1, max_size=20),
    raw=st.lists(st.binary(max_size=60), max_size=20),
)
def test_any_messages_on_a_stream(fuzzed: Administered, fed: list[bytes], raw: list[bytes]) -> None:
    good = [asked(rpc, number) for number, rpc in enumerate(GOOD)]
    sent = [spoiled(good, each) for each in fed]
    stream = RawStream(fuzzed.run.channel)
    stream.send(*chain(sent, raw, [asked("TopK", 0)]))
    stream.half_close()
    replies = stream.rest()
    assert len(replies) == len(sent) + len(raw) + 1
    assert Counter([*(one.id for one in sent), 0]) <= Counter(reply.id for reply in replies)
    allowed = {code.value[0] for code in DOCUMENTED | {Code.DEADLINE_EXCEEDED}}
    for reply in replies:
        if reply.WhichOneof("reply") == "error":
            assert reply.error.code in allowed, reply
            assert reply.error.message
    assert any(reply.id == 0 and reply.top_k.ids.rows for reply in replies)


@seeded(60)
@given(
    request_id=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200),
    token=st.binary(max_size=100),
)
def test_any_metadata(fuzzed: Administered, request_id: str, token: bytes) -> None:
    metadata = [("x-request-id", request_id), ("authorization-bin", token)]
    call = fuzzed.run.channel.unary_unary(f"/{DECODER}/TopK")
    assert call(GOOD["TopK"].SerializeToString(), metadata=metadata, timeout=WAIT_S)
