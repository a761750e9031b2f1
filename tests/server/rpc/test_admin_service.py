"""Loading, unloading and naming versions while others answer."""

import asyncio
import errno
import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from logitsieve.api.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    Unavailable,
    Unimplemented,
)
from logitsieve.client import AdminClient
from logitsieve.server.metrics import Call
from logitsieve.server.models.repository import Repository
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import DecoderStub
from tests.refusals import refused
from tests.server.materials import Door, Gate, damage, gated, mapped, replace_file
from tests.server.messages import LARGE
from tests.server.running import (
    NOT_SERVING,
    SERVICE_UNKNOWN,
    SERVING,
    WAIT_S,
    Administered,
    Loop,
    administered,
    config_for,
    write_model,
)
from tests.server.test_app import get, send, value
from tests.synthetic import make_hidden, make_softmax, write_heads


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """demo@1, which is stable."""
    write_model(tmp_path)
    (tmp_path / "demo" / "aliases.json").write_text('{"stable": 1}')
    return tmp_path


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def served(loop: Loop, models: Path, door: Door) -> Iterator[Administered]:
    config = config_for(models)
    with administered(loop, config, Repository(config, door)) as found:
        yield found
        door.open()


@pytest.fixture
def held(loop: Loop, models: Path, gate: Gate) -> Iterator[Administered]:
    """With a gate before each computation, and demo@2."""
    write_model(models, version=2)
    config = config_for(models)
    with administered(loop, config, gated(config, gate)) as found:
        yield found


def ask(served: Administered, model: str) -> None:
    """Straight to the channel: the client would try again until it is loaded."""
    request = pb.TopKRequest(model_spec=pb.ModelSpec(model=model))
    DecoderStub(served.run.channel).TopK(request, timeout=WAIT_S)


def aliases_in(models: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((models / "demo" / "aliases.json").read_text())
    return found


def test_a_new_version_answers_by_its_alias_at_once(served: Administered, models: Path) -> None:
    write_model(models, version=2)
    write_model(models, version=3)
    loaded = served.admin.load("demo", 2)
    assert (loaded.version, loaded.state, loaded.aliases) == ("2", "available", ())
    assert [served.version_of(model) for model in ("demo", "demo@2")] == ["1", "2"]
    assert served.admin.load("demo", 3, alias="stable").aliases == ("stable",)
    asked = ("demo", "demo:stable", "", "demo@1", "demo@2")
    assert [served.version_of(model) for model in asked] == ["3", "3", "3", "1", "2"]
    assert aliases_in(models) == {"stable": 3}
    assert served.health_of("demo@3") == SERVING


def test_without_stable_the_highest_answers(loop: Loop, tmp_path: Path) -> None:
    write_model(tmp_path)
    with administered(loop, config_for(tmp_path)) as served:
        write_model(tmp_path, version=2)
        served.admin.load("demo", 2)
        assert served.version_of("demo") == "2"
        served.admin.unload("demo", 2)
        assert served.version_of("demo") == "1"
        served.admin.unload("demo", 1)
        with pytest.raises(ModelNotFound):
            served.version_of("demo")
        assert get(served.run, "/readyz")[0] == 503
        served.admin.load("demo", 1)
        assert served.version_of("") == "1"
        assert get(served.run, "/readyz")[0] == 200


def test_models_that_were_not_there_at_the_start(served: Administered, models: Path) -> None:
    write_model(models, "other", 1)
    (models / "other" / "aliases.json").write_text('{"canary": 1}')
    assert served.admin.load("other", 1).aliases == ("canary",)
    assert served.version_of("other:canary") == "1"
    write_heads(
        models / "large" / "1", make_softmax(dim=200)
    )  # held to the limit that the port has
    loaded, small = served.admin.load("large", 1), served.run.client.model("demo@1")
    assert loaded.limits.max_request_bytes == small.limits.max_request_bytes
    hidden_states = make_hidden(3, dim=200)
    assert served.run.client.topk(hidden_states, 2, model="large").ids.shape == (3, 2)


def write_spoiled(models: Path, fault: str) -> None:
    """Write demo@2 with a fault that is told in these words."""
    path = write_model(models, version=2, vocabulary=[f"word{n}" for n in range(300)])
    match fault:
        case "softmax.safetensors: damaged":
            damage(path / "softmax.safetensors")
        case "vocabulary.* damaged":
            file = next(file for file in path.iterdir() if b"word7" in file.read_bytes())
            replace_file(file, file.read_bytes().replace(b"word7\n", b"mord7\n"))
        case "screen.safetensors" | "softmax.safetensors":  # whole, of another matrix
            other = write_model(models, "apart", 3) / fault
            replace_file(path / fault, other.read_bytes())
            shutil.rmtree(models / "apart")
        case "hidden size 25":
            shutil.rmtree(path)
            write_heads(path, make_softmax(dim=25))
        case "manifest.json: missing":
            (path / "manifest.json").unlink()


FAULTS = [
    *("softmax.safetensors: damaged", "vocabulary.* damaged", "screen.safetensors"),
    *("softmax.safetensors", "hidden size 25", "manifest.json: missing"),
]


def test_what_cannot_be_loaded_leaves_the_old_one(served: Administered, models: Path) -> None:
    for fault in FAULTS:
        write_spoiled(models, fault)
        with refused("version", fault):
            served.admin.load("demo", 2, alias="stable")
        assert served.version_of("demo") == "1"
        state, error = served.state_of("demo@2")
        assert state == "failed"
        assert re.search(fault, error)
        assert served.health_of("demo@2") == NOT_SERVING
        assert served.health_of("demo") == SERVING
        assert aliases_in(models) == {"stable": 1}
        with pytest.raises(ModelNotFound, match="demo@2 is not loaded"):
            served.version_of("demo@2")
        assert served.admin.unload("demo", 2).state == "unspecified"
        with pytest.raises(ModelNotFound):
            served.state_of("demo@2")
        shutil.rmtree(models / "demo" / "2")
    write_spoiled(models, FAULTS[0])
    with pytest.raises(InvalidRequest):
        served.admin.load("demo", 2)
    shutil.rmtree(models / "demo" / "2")
    write_model(models, version=2)
    assert served.admin.load("demo", 2).error == ""
    assert served.version_of("demo@2") == "2"


def test_a_version_whose_files_went_bad_goes_on_serving(served: Administered, models: Path) -> None:
    damage(models / "demo" / "1" / "softmax.safetensors")
    before = served.run.client.topk(LARGE, 5, model="demo")
    with pytest.raises(InvalidRequest, match="damaged"):
        served.admin.load("demo", 1)
    state, error = served.state_of("demo@1")
    assert state == "available"
    assert "damaged" in error
    after = served.run.client.topk(LARGE, 5, model="demo")
    assert (after.ids == before.ids).all()


def test_while_it_loads(served: Administered, models: Path, door: Door) -> None:
    write_model(models, version=2)
    door.shut()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(served.admin.load, "demo", 2, "stable")
        door.wait_entered()
        assert served.state_of("demo@2") == ("loading", "")
        served.health_of("demo@2", until=NOT_SERVING)
        assert served.version_of("demo") == "1"
        with pytest.raises(InvalidRequest, match="loading"):
            served.admin.set_alias("demo", "canary", 2)
        with pytest.raises(Unavailable, match="loading"):
            served.admin.unload("demo", 2)
        with pytest.raises(grpc.RpcError, match="demo@2 is loading"):
            ask(served, "demo@2")
        door.open()
        assert loading.result(WAIT_S).state == "available"
    assert served.version_of("demo") == "2"


def test_loads_of_a_version_at_one_time_are_one(
    served: Administered, models: Path, door: Door
) -> None:
    """Each sets its alias; a bad one fails its own request alone."""
    write_model(models, version=2)
    service = served.run.server._admin
    assert service is not None
    two = pb.LoadRequest(name="demo", version="2", alias="stable")
    canary = pb.LoadRequest(name="demo", version="2", alias="canary")
    bad = pb.LoadRequest(name="demo", version="2", alias="UP")
    one = pb.LoadRequest(name="demo", version="1")
    door.shut()

    async def load_all() -> list[Any]:
        requests = (bad, two, canary, two, one, bad)
        loads = [service.Load(version, Call("Load")) for version in requests]
        return await asyncio.gather(*loads, return_exceptions=True)

    loading = served.run.loop.start(load_all())
    door.wait_entered()
    door.open()
    refused, *models_of, refused_too = loading.result(WAIT_S)
    assert refused.field == refused_too.field == "alias"
    assert [(model.version, model.state) for model in models_of] == [
        (version, pb.STATE_AVAILABLE) for version in ("2", "2", "2", "1")
    ]
    assert door.computed == 2
    assert aliases_in(models) == {"stable": 2, "canary": 2}


def test_an_abandoned_load_is_finished(served: Administered, models: Path, door: Door) -> None:
    write_model(models, version=2)
    door.shut()
    address = served.admin.address
    with AdminClient(address, timeout_s=0.5) as hasty, ThreadPoolExecutor(1) as pool:
        loading = pool.submit(hasty.load, "demo", 2, "stable")
        door.wait_entered()
        with pytest.raises(DeadlineExceeded):
            loading.result(WAIT_S)
    door.open()
    served.health_of("demo@2", until=SERVING)
    assert served.version_of("demo") == "2"


def test_what_an_alias_names_is_not_unloaded(served: Administered, models: Path) -> None:
    write_model(models, version=2)
    served.admin.load("demo", 2)
    with refused("version", "named stable"):
        served.admin.unload("demo", 1)
    assert served.admin.set_alias("demo", "stable", 2).aliases == ("stable",)
    with pytest.raises(ModelNotFound):
        served.admin.set_alias("demo", "old", None)
    assert served.version_of("demo") == "2"
    served.run.client.topk(LARGE, 5, model="demo@1", normalizer="full")
    assert mapped(models / "demo" / "1")
    gone = served.admin.unload("demo", 1)
    assert (gone.version, gone.state) == ("1", "unspecified")
    assert not mapped(models / "demo" / "1")
    assert mapped(models / "demo" / "2")
    assert served.health_of("demo@1") == SERVICE_UNKNOWN
    assert [model.version for model in served.run.client.models()] == ["2"]
    with pytest.raises(ModelNotFound):
        served.version_of("demo@1")
    with pytest.raises(ModelNotFound):
        served.admin.unload("demo", 1)
    with pytest.raises(InvalidRequest):
        served.admin.load("demo", 7)
    info = r'^logitsieve_index_info\{.*version="(.+?)"'
    assert re.findall(info, get(served.run, "/metrics")[1], re.M) == ["2"]
    reloads = 'logitsieve_reloads_total{model="demo",result="%s"}'
    assert [value(served.run, reloads % result) for result in ("ok", "failed")] == [1, 1]


def test_requests_keep_their_version(held: Administered, models: Path, gate: Gate) -> None:
    gate.shut()
    under_way = send(held.run)
    gate.wait_entered()
    held.admin.set_alias("demo", "stable", 2)
    assert held.admin.unload("demo", 1, drain_s=0).state == "unloading"
    assert held.state_of("demo@1") == ("unloading", "")
    assert held.health_of("demo@1") == NOT_SERVING
    assert mapped(models / "demo" / "1")
    with pytest.raises(grpc.RpcError, match="demo@1 is unloading"):
        ask(held, "demo@1")
    with pytest.raises(Unavailable, match="unloading"):
        held.admin.unload("demo", 1)
    gate.open()
    assert pb.TopKResponse.FromString(under_way.result(WAIT_S)).answer.version == "1"
    held.health_of("demo@1", until=SERVICE_UNKNOWN)
    assert not mapped(models / "demo" / "1")
    assert held.version_of("demo") == "2"


def test_a_version_that_is_leaving_can_be_loaded_again(held: Administered, gate: Gate) -> None:
    gate.shut()
    under_way = send(held.run)
    gate.wait_entered()
    held.admin.set_alias("demo", "stable", 2)
    held.admin.unload("demo", 1, drain_s=0)
    gate.open()
    held.admin.load("demo", 1, alias="stable")
    assert under_way.result(WAIT_S)
    assert held.version_of("demo") == "1"
    assert held.state_of("demo@1") == ("available", "")


def test_an_alias_that_another_moved_stays(loop: Loop, models: Path) -> None:
    write_model(models, version=2)
    config = config_for(models)
    with administered(loop, config) as one, administered(loop, config) as other:
        one.admin.set_alias("demo", "stable", 2)
        other.admin.set_alias("demo", "canary", 1)
        assert aliases_in(models) == {"stable": 2, "canary": 1}
        assert (one.version_of("demo"), other.version_of("demo")) == ("2", "1")


def test_a_full_disk_changes_nothing(loop: Loop, models: Path) -> None:
    def full(model: Path, alias: str, number: int | None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_model(models, version=2)
    write_model(models, version=3)
    config = config_for(models)
    with administered(loop, config, Repository(config, write=full)) as served:
        with pytest.raises(Unavailable, match="No space left"):
            served.admin.set_alias("demo", "stable", 2)
        served.admin.unload("demo", 3)
        with pytest.raises(Unavailable, match="No space left"):
            served.admin.load("demo", 3, alias="stable")
        assert served.version_of("demo") == "1"
        assert served.state_of("demo@3")[0] == "failed"
        assert not mapped(models / "demo" / "3")
        assert served.admin.load("demo", 3).state == "available"


SENSELESS: list[tuple[str, Any, str]] = [
    ("Load", pb.LoadRequest(name="demo"), "version"),
    ("Load", pb.LoadRequest(name="demo", version="01"), "version"),
    ("Load", pb.LoadRequest(name="demo", version="1", alias="UP"), "alias"),
    ("Load", pb.LoadRequest(name="../demo", version="1"), "name"),
    ("Load", pb.LoadRequest(name="nothing", version="1"), "name"),
    ("Unload", pb.UnloadRequest(name="demo", version="-1"), "version"),
    ("Unload", pb.UnloadRequest(name="demo", version="9"), "version"),
    ("SetAlias", pb.SetAliasRequest(name="demo", version="1"), "alias"),
    ("SetAlias", pb.SetAliasRequest(name="demo", alias="a b", version="1"), "alias"),
    ("SetAlias", pb.SetAliasRequest(name="demo", alias="a", version="9"), "version"),
    ("SetAlias", pb.SetAliasRequest(name="nothing", alias="a", version="1"), "name"),
]


def test_senseless_requests_change_nothing(served: Administered, models: Path) -> None:
    for rpc, request, field in SENSELESS:
        with pytest.raises((InvalidRequest, ModelNotFound)) as caught:
            served.admin._call(getattr(served.admin._admin, rpc), request, bool)
        error: Any = caught.value
        assert error.field == field, request
    with refused("version", "a version that has a folder: 1"):
        served.admin.load("demo", 9, alias="stable")
    assert served.health_of("demo@9") == SERVICE_UNKNOWN
    failed = 'logitsieve_version_failed{model="demo",version="9"}'
    assert failed not in get(served.run, "/metrics")[1]
    with pytest.raises(Unimplemented), AdminClient(served.run.address, timeout_s=WAIT_S) as public:
        public.load("demo", 1)
    unknown = pytest.raises(grpc.RpcError, match="UNIMPLEMENTED")
    with grpc.insecure_channel(served.admin.address) as channel, unknown:
        DecoderStub(channel).TopK(pb.TopKRequest(), timeout=WAIT_S)
    assert [(m.version, m.state) for m in served.run.client.models()] == [("1", "available")]
    assert aliases_in(models) == {"stable": 1}
