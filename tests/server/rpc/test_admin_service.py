"""Loading, unloading and naming versions while others answer."""

import asyncio
import errno
import json
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from logitsieve.api.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LogitsieveError,
    ModelNotFound,
    NotBuilt,
    Unavailable,
)
from logitsieve.client import AdminClient
from logitsieve.index import HeadEntry, write_index
from logitsieve.server.metrics import Call
from logitsieve.server.models.repository import Repository
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import DecoderStub
from tests.server.materials import Door, Gate, damage, gated, mapped, replace_file
from tests.server.running import (
    NOT_SERVING,
    SERVICE_UNKNOWN,
    SERVING,
    WAIT_S,
    Administered,
    Loop,
    administered,
    config_of,
    write_model,
)
from tests.server.test_app import LARGE, get, send, value
from tests.synthetic import make_hidden, make_softmax


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
def served(loop: Loop, models: Path, kernel_cache: Path, door: Door) -> Iterator[Administered]:
    config = config_of(models, kernel_cache)
    with administered(loop, config, Repository(config, door)) as found:
        yield found
        door.open()


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


def test_without_stable_the_highest_answers(loop: Loop, tmp_path: Path, kernel_cache: Path) -> None:
    write_model(tmp_path)
    with administered(loop, config_of(tmp_path, kernel_cache)) as served:
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


def test_a_model_that_was_not_there_at_the_start(served: Administered, models: Path) -> None:
    write_model(models, "other", 1)
    (models / "other" / "aliases.json").write_text('{"canary": 1}')
    assert served.admin.load("other", 1).aliases == ("canary",)
    assert served.version_of("other:canary") == "1"


def spoil_damaged(models: Path) -> str:
    damage(write_model(models, version=2) / "softmax.safetensors")
    return "damaged"


def spoil_swapped(models: Path) -> str:
    """A whole screen, of the same sizes, that belongs to another matrix."""
    path = write_model(models, version=2)
    replace_file(
        path / "screen.safetensors",
        (write_model(models, "apart", 3) / "screen.safetensors").read_bytes(),
    )
    shutil.rmtree(models / "apart")
    return "screen.safetensors"


def spoil_vocabulary(models: Path) -> str:
    path = write_model(models, version=2, vocabulary=[f"word{n}" for n in range(300)])
    file = next(file for file in path.iterdir() if b"word7" in file.read_bytes())
    replace_file(file, file.read_bytes().replace(b"word7\n", b"mord7\n"))
    return "damaged"


def spoil_matrix(models: Path) -> str:
    path = write_model(models, version=2)
    other = write_model(models, "apart", 3) / "softmax.safetensors"
    replace_file(path / "softmax.safetensors", other.read_bytes())
    shutil.rmtree(models / "apart")
    return "softmax.safetensors"


def spoil_dims(models: Path) -> str:
    softmax = make_softmax(dim=25)
    out, heads = models / "demo" / "2", {"exact": HeadEntry()}
    write_index(out, softmax=softmax, parts={}, heads=heads, default_head="exact")
    return "hidden size 25"


def spoil_manifest(models: Path) -> str:
    (write_model(models, version=2) / "manifest.json").unlink()
    return "manifest.json: missing"


@pytest.mark.parametrize(
    "spoil",
    [spoil_damaged, spoil_swapped, spoil_vocabulary, spoil_matrix, spoil_dims, spoil_manifest],
)
def test_what_cannot_be_loaded_leaves_the_old_one(
    served: Administered, models: Path, spoil: object
) -> None:
    reason = spoil(models)  # type: ignore[operator]
    with pytest.raises(InvalidRequest, match=reason) as caught:
        served.admin.load("demo", 2, alias="stable")
    assert caught.value.field == "version"
    assert served.version_of("demo") == "1"
    state, error = served.state_of("demo@2")
    assert state == "failed"
    assert reason in error
    assert served.health_of("demo@2") == NOT_SERVING
    assert served.health_of("demo") == SERVING
    assert aliases_in(models) == {"stable": 1}
    with pytest.raises(ModelNotFound, match="demo@2 is not loaded"):
        served.version_of("demo@2")
    assert served.admin.unload("demo", 2).state == "unspecified"
    with pytest.raises(ModelNotFound):
        served.state_of("demo@2")


def test_a_version_without_a_folder_leaves_no_entry(served: Administered) -> None:
    with pytest.raises(InvalidRequest, match="a version that has a folder: 1") as caught:
        served.admin.load("demo", 9, alias="stable")
    assert caught.value.field == "version"
    assert [model.version for model in served.run.client.models()] == ["1"]
    assert served.health_of("demo@9") == SERVICE_UNKNOWN
    failed = 'logitsieve_version_failed{model="demo",version="9"}'
    assert failed not in get(served.run, "/metrics")[1]


def test_a_version_that_failed_is_loaded_when_it_is_whole(
    served: Administered, models: Path
) -> None:
    spoil_damaged(models)
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
        served.wait_health("demo@2", NOT_SERVING)
        assert served.version_of("demo") == "1"
        with pytest.raises(InvalidRequest, match="loading"):
            served.admin.set_alias("demo", "canary", 2)
        with pytest.raises(Unavailable, match="loading"):
            served.admin.unload("demo", 2)
        # Straight to the channel: the client would try again until it is loaded.
        with pytest.raises(grpc.RpcError, match="demo@2 is loading"):
            DecoderStub(served.run.channel).TopK(
                pb.TopKRequest(target=pb.Target(model="demo@2")), timeout=WAIT_S
            )
        door.open()
        assert loading.result(WAIT_S).state == "available"
    assert served.version_of("demo") == "2"


def test_equal_loads_at_one_time_are_one(served: Administered, models: Path, door: Door) -> None:
    write_model(models, version=2)
    service = served.run.server._admin
    assert service is not None
    two = pb.LoadRequest(name="demo", version="2", alias="stable")
    one = pb.LoadRequest(name="demo", version="1")
    door.shut()

    async def load_all() -> list[pb.Model]:
        loads = [service.Load(version, Call("Load")) for version in (two, two, one, two)]
        return await asyncio.gather(*loads)

    loading = served.run.loop.start(load_all())
    door.wait_entered()
    door.open()
    assert [(model.version, model.state) for model in loading.result(WAIT_S)] == [
        (version, pb.STATE_AVAILABLE) for version in ("2", "2", "1", "2")
    ]
    assert door.came == 2


def test_a_load_that_nobody_waits_for_is_finished(
    served: Administered, models: Path, door: Door
) -> None:
    write_model(models, version=2)
    door.shut()
    address = served.admin.address
    with AdminClient(address, timeout_s=0.5) as hasty, ThreadPoolExecutor(1) as pool:
        loading = pool.submit(hasty.load, "demo", 2, "stable")
        door.wait_entered()
        with pytest.raises(DeadlineExceeded):
            loading.result(WAIT_S)
    door.open()
    served.wait_health("demo@2", SERVING)
    assert served.version_of("demo") == "2"


def test_what_an_alias_names_is_not_unloaded(served: Administered, models: Path) -> None:
    write_model(models, version=2)
    served.admin.load("demo", 2)
    with pytest.raises(InvalidRequest, match="named stable") as caught:
        served.admin.unload("demo", 1)
    assert caught.value.field == "version"
    assert served.admin.set_alias("demo", "stable", 2).aliases == ("stable",)
    assert served.version_of("demo") == "2"
    gone = served.admin.unload("demo", 1)
    assert (gone.version, gone.state) == ("1", "unspecified")
    assert served.health_of("demo@1") == SERVICE_UNKNOWN
    assert [model.version for model in served.run.client.models()] == ["2"]
    with pytest.raises(ModelNotFound):
        served.version_of("demo@1")
    with pytest.raises(ModelNotFound):
        served.admin.unload("demo", 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_unloaded_index_is_not_mapped_any_more(served: Administered, models: Path) -> None:
    write_model(models, version=2)
    served.admin.load("demo", 2, alias="stable")
    served.run.client.topk(LARGE, 5, model="demo@1", normalizer="exact")
    assert mapped(models / "demo" / "1")
    served.admin.unload("demo", 1)
    assert not mapped(models / "demo" / "1")
    assert mapped(models / "demo" / "2")


def test_requests_under_way_are_answered_by_the_version_they_began_with(
    loop: Loop, models: Path, kernel_cache: Path, gate: Gate
) -> None:
    write_model(models, version=2)
    config = config_of(models, kernel_cache)
    with administered(loop, config, gated(config, gate)) as served:
        gate.shut()
        under_way = send(served.run)
        gate.wait_entered()
        served.admin.set_alias("demo", "stable", 2)
        assert served.admin.unload("demo", 1, drain_s=0).state == "unloading"
        assert served.state_of("demo@1") == ("unloading", "")
        assert served.health_of("demo@1") == NOT_SERVING
        assert mapped(models / "demo" / "1")
        with pytest.raises(grpc.RpcError, match="demo@1 is unloading"):
            DecoderStub(served.run.channel).TopK(
                pb.TopKRequest(target=pb.Target(model="demo@1")), timeout=WAIT_S
            )
        with pytest.raises(Unavailable, match="unloading"):
            served.admin.unload("demo", 1)
        gate.open()
        assert pb.TopKResponse.FromString(under_way.result(WAIT_S)).answer.version == "1"
        served.wait_health("demo@1", SERVICE_UNKNOWN)
        assert not mapped(models / "demo" / "1")
        assert served.version_of("demo") == "2"


def test_a_version_that_is_leaving_can_be_loaded_again(
    loop: Loop, models: Path, kernel_cache: Path, gate: Gate
) -> None:
    write_model(models, version=2)
    config = config_of(models, kernel_cache)
    with administered(loop, config, gated(config, gate)) as served:
        gate.shut()
        under_way = send(served.run)
        gate.wait_entered()
        served.admin.set_alias("demo", "stable", 2)
        served.admin.unload("demo", 1, drain_s=0)
        gate.open()
        served.admin.load("demo", 1, alias="stable")
        assert under_way.result(WAIT_S)
        assert served.version_of("demo") == "1"
        assert served.state_of("demo@1") == ("available", "")


def test_a_restart_keeps_aliases(loop: Loop, models: Path, kernel_cache: Path) -> None:
    write_model(models, version=2)
    write_model(models, version=3)
    config = config_of(models, kernel_cache)
    with administered(loop, config) as served:
        served.admin.set_alias("demo", "stable", 2)
        served.admin.set_alias("demo", "canary", 3)
        served.admin.set_alias("demo", "old", 1)
        assert served.admin.set_alias("demo", "old", None).aliases == ()
        with pytest.raises(ModelNotFound):
            served.admin.set_alias("demo", "old", None)
    with administered(loop, config) as served:
        assert [served.version_of(model) for model in ("demo", "demo:canary")] == ["2", "3"]
        with pytest.raises(ModelNotFound):
            served.version_of("demo:old")


def test_an_alias_that_another_process_moved_is_not_moved_back(
    loop: Loop, models: Path, kernel_cache: Path
) -> None:
    write_model(models, version=2)
    config = config_of(models, kernel_cache)
    with administered(loop, config) as one, administered(loop, config) as other:
        one.admin.set_alias("demo", "stable", 2)
        other.admin.set_alias("demo", "canary", 1)
        assert aliases_in(models) == {"stable": 2, "canary": 1}
        assert (one.version_of("demo"), other.version_of("demo")) == ("2", "1")


def test_a_full_disk_changes_nothing(loop: Loop, models: Path, kernel_cache: Path) -> None:
    def full(model: Path, alias: str, number: int | None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_model(models, version=2)
    write_model(models, version=3)
    config = config_of(models, kernel_cache)
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


@pytest.mark.parametrize(
    ("rpc", "request_", "field"),
    [
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
    ],
)
def test_senseless_requests(
    served: Administered, models: Path, rpc: str, request_: object, field: str
) -> None:
    with pytest.raises(LogitsieveError) as caught:
        served.admin._call(getattr(served.admin._admin, rpc), request_, bool)
    assert isinstance(caught.value, InvalidRequest | ModelNotFound)
    assert caught.value.field == field
    assert [(m.version, m.state) for m in served.run.client.models()] == [("1", "available")]
    assert aliases_in(models) == {"stable": 1}


def test_each_port_has_its_own_services(served: Administered) -> None:
    with pytest.raises(NotBuilt), AdminClient(served.run.address, timeout_s=WAIT_S) as public:
        public.load("demo", 1)
    with grpc.insecure_channel(served.admin.address) as channel:
        call = DecoderStub(channel).TopK
        with pytest.raises(grpc.RpcError) as caught:
            call(pb.TopKRequest(), timeout=WAIT_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_there_need_not_be_an_admin_port(loop: Loop, models: Path, kernel_cache: Path) -> None:
    with administered(loop, config_of(models, kernel_cache, admin=False)) as served:
        assert served.run.server.admin_port == 0


def test_metrics_tell_what_is_loaded(served: Administered, models: Path) -> None:
    write_model(models, version=2)
    served.admin.load("demo", 2, alias="stable")
    with pytest.raises(InvalidRequest):
        served.admin.load("demo", 7)
    served.admin.unload("demo", 1)
    text = get(served.run, "/metrics")[1]
    assert [line.partition('version="')[2][0] for line in text.splitlines() if INFO in line] == [
        "2"
    ]
    reloads = 'logitsieve_reloads_total{model="demo",result="%s"}'
    assert [value(served.run, reloads % result) for result in ("ok", "failed")] == [1, 1]


INFO = "logitsieve_index_info{"


def test_a_larger_model_is_held_to_the_limit_that_the_port_has(
    served: Administered, models: Path
) -> None:
    softmax = make_softmax(dim=200)
    out, heads = models / "large" / "1", {"exact": HeadEntry()}
    write_index(out, softmax=softmax, parts={}, heads=heads, default_head="exact")
    loaded, small = served.admin.load("large", 1), served.run.client.model("demo@1")
    assert loaded.limits.max_request_bytes == small.limits.max_request_bytes
    hidden = make_hidden(3, dim=200)
    assert served.run.client.topk(hidden, 2, model="large").ids.shape == (3, 2)
