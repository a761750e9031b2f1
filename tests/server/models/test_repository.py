import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest, ModelNotFound
from logitsieve.server.models.repository import Repository, open_configured
from logitsieve.utils.options import no_progress
from tests.refusals import refused
from tests.server.running import WAIT_S, config_for, write_model


def loaded(folder: Path, **options: Any) -> Repository:
    repository = Repository(config_for(folder), **options)
    for name, number in repository.find():
        repository.load(name, number, no_progress)
    return repository


def test_names_versions_aliases_and_what_is_missing(tmp_path: Path) -> None:
    for version in (1, 2, 10):
        write_model(tmp_path, "demo", version)
    aliases = tmp_path / "demo" / "aliases.json"
    assert loaded(tmp_path).routes.served("demo").decoder.version == "10"
    aliases.write_text(json.dumps({"stable": 2, "canary": 10}))
    repository = loaded(tmp_path)
    named = {"": "2", "demo": "2", "demo@1": "1", "demo:stable": "2", "demo:canary": "10"}
    for model, number in named.items():
        assert repository.routes.served(model).decoder.version == number
    assert [version.label for version in repository.versions()] == ["demo@1", "demo@2", "demo@10"]
    assert repository.routes.aliases_of(repository.routes.get("demo@10")) == ["canary"]
    write_model(tmp_path, "a")
    repository = loaded(tmp_path)
    with pytest.raises(InvalidRequest, match="a, demo"):  # an empty name must mean one model
        repository.routes.served("")
    for model, known in {
        "demo@9": r"demo \(versions 1, 2, 10; aliases canary, stable\)",
        "a:stable": r"a \(versions 1; no alias\)",
        "b": "a, demo",
    }.items():
        with pytest.raises(ModelNotFound, match=f"no '{model}' here, there are: {known}$"):
            repository.routes.served(model)


def test_a_broken_version_keeps_its_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_model(tmp_path, "demo", 1)
    (tmp_path / "demo" / "2").mkdir()
    with caplog.at_level(logging.ERROR):
        repository = loaded(tmp_path)
    assert "demo@2" in caplog.text
    assert "Traceback" not in caplog.text
    assert repository.routes.served("demo").decoder.version == "1"
    assert "manifest.json" in repository.routes.get("demo@2").error
    with pytest.raises(ModelNotFound, match=r"manifest\.json"):
        repository.routes.served("demo@2")
    # An alias never means another version.
    (tmp_path / "demo" / "aliases.json").write_text('{"stable": 2, "old": 7}')
    repository = loaded(tmp_path)
    for model in ("demo", "demo:stable", "demo:old"):
        with pytest.raises(ModelNotFound):
            repository.routes.served(model)
    assert repository.routes.served("demo@1").decoder.version == "1"


def test_a_spoiled_aliases_file_fails_its_model_only(tmp_path: Path) -> None:
    write_model(tmp_path, "demo")
    write_model(tmp_path, "other")
    (tmp_path / "demo" / "aliases.json").write_text('{"stable": "1"}')
    repository = loaded(tmp_path)
    assert "aliases.json" in repository.routes.get("demo").error
    assert repository.routes.served("other").decoder.name == "other"


def test_a_defect_of_one_version_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, "a")
    write_model(tmp_path, "b")

    def opener(path: Path, *rest: Any) -> Any:
        if path.parent.name == "a":
            raise KeyError("defect")
        return open_configured(path, *rest)

    repository = loaded(tmp_path, opener=opener)
    assert "KeyError" in repository.routes.get("a").error
    assert repository.routes.served("b").decoder.name == "b"
    assert "Traceback" in caplog.text


def test_what_is_no_index_folder_is_left_alone(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with refused("model_repository"):
            Repository(config_for(folder)).find()
    for name in (".tmp-1/1", "UPPER/1", "demo/0", "demo/01", "demo/.tmp-2", "demo/7"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "README").write_text("")
    assert Repository(config_for(tmp_path)).find() == [("demo", 7)]
    write_model(tmp_path, "own")
    with refused("model_repository", f"one folder up, {tmp_path}"):
        Repository(config_for(tmp_path / "own")).find()


def test_a_change_waits_while_an_alias_is_being_written(tmp_path: Path) -> None:
    writing, go_on = Event(), Event()

    def write(model: Path, alias: str, number: int | None) -> None:
        writing.set()
        assert go_on.wait(WAIT_S)

    for version in (1, 2):
        write_model(tmp_path, "demo", version)
    repository = loaded(tmp_path, write=write)
    with ThreadPoolExecutor(2) as pool:
        naming = pool.submit(repository.set_alias, "demo", "canary", 1)
        assert writing.wait(WAIT_S)
        unloading = pool.submit(repository.unload, "demo", 1)
        assert [version.number for version in repository.versions()] == [1, 2]
        go_on.set()
        naming.result(WAIT_S)
        with pytest.raises(InvalidRequest, match="named canary"):
            unloading.result(WAIT_S)
    assert repository.routes.served("demo:canary").decoder.version == "1"
    assert [version.number for version in repository.versions()] == [1, 2]
