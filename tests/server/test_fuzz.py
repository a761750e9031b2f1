"""Every RPC under messages that no client of ours would send: only documented codes, never UNKNOWN
or INTERNAL, and the server answers a good request after each.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.api.errors import LogitsieveError
from logitsieve.client import DecoderClient
from logitsieve.index import Index
from logitsieve.server import ServeConfig
from logitsieve.server.models.repository import Repository, open_configured
from logitsieve.utils.options import Progress
from tests.server import messages
from tests.server.materials import Gate, GatedIndex
from tests.server.messages import DOCUMENTED, GOOD, Code, RawStream, asked, assert_alive, error_of
from tests.server.running import (
    WAIT_S,
    Administered,
    Loop,
    Running,
    administered,
    config_of,
    write_model,
    write_whole,
)
from tests.synthetic import make_hidden

DECODER, MODELS, ADMIN, KSERVE = (
    "logitsieve.v1.Decoder",
    "logitsieve.v1.Models",
    "logitsieve.v1.Admin",
    "inference.GRPCInferenceService",
)
PUBLIC = {
    f"{service}/{rpc}": requests
    for service, rpcs in (
        (DECODER, messages.DECODER),
        (MODELS, messages.READ),
        (KSERVE, messages.KSERVE),
    )
    for rpc, requests in rpcs.items()
}
CHANGING = {
    f"{service}/{rpc}": requests
    for service, rpcs in ((ADMIN, messages.ADMIN), (KSERVE, messages.KSERVE_ADMIN))
    for rpc, requests in rpcs.items()
}
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
                    client.sample(rows, 8, model="other", head="exact")

    callers = [Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        yield
    finally:
        over.set()
        for caller in callers:
            caller.join(WAIT_S)


@pytest.fixture(scope="module", params=["idle", "busy", "elsewhere"])
def fuzzed(
    request: pytest.FixtureRequest,
    loop: Loop,
    tmp_path_factory: pytest.TempPathFactory,
    kernel_cache: Any,
) -> Iterator[Administered]:
    """demo@1 (stable), demo@2 (canary), other@1 with every head; demo@3 is broken."""
    folder = tmp_path_factory.mktemp("fuzzed")
    write_model(folder, "demo", 1)
    write_model(folder, "demo", 2)
    write_whole(folder, "other")
    (folder / "demo" / "3").mkdir()
    (folder / "demo" / "aliases.json").write_text(json.dumps({"stable": 1, "canary": 2}))
    limits = {"max_rows": 256, "max_k": 128, "max_samples": 64, "max_constraint_ids": 1000}
    config = config_of(folder, kernel_cache, **limits)
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


def assert_documented(channel: grpc.Channel, path: str, message: bytes) -> None:
    try:
        channel.unary_unary(f"/{path}")(message, timeout=WAIT_S)
    except grpc.RpcError as error:
        failure = error
    else:
        return
    allowed = DOCUMENTED if path.startswith((DECODER, MODELS)) else DOCUMENTED | ELSEWHERE
    assert failure.code() in allowed, failure
    if failure.code() is not Code.UNIMPLEMENTED:  # gRPC says that by itself
        assert error_of(failure).message


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
@given(data=st.data())
def test_any_fields(fuzzed: Administered, path: str, data: st.DataObject) -> None:
    message = data.draw(PUBLIC[path])
    assert_documented(fuzzed.run.channel, path, message.SerializeToString())
    assert_alive(fuzzed.run)


@pytest.mark.parametrize("path", CHANGING)
@seeded(40)
@given(data=st.data())
def test_any_fields_on_the_admin_port(
    fuzzed: Administered, admin_channel: grpc.Channel, path: str, data: st.DataObject
) -> None:
    message = data.draw(CHANGING[path] | st.binary(max_size=30))
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    assert_documented(admin_channel, path, raw)
    fuzzed.admin.load("demo", 1, alias="stable")  # whatever was unloaded or renamed
    assert_alive(fuzzed.run)


@seeded(60)
@given(sent=st.lists(messages.DECODE, min_size=1, max_size=20))
def test_any_messages_on_a_stream(fuzzed: Administered, sent: list[Any]) -> None:
    stream = RawStream(fuzzed.run)
    stream.send(*chain(sent, [asked("TopK", 0)]))
    stream.half_close()
    replies = stream.rest()
    assert sorted(reply.id for reply in replies) == sorted([*(one.id for one in sent), 0])
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
