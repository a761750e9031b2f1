import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.server.running import Administered, Loop, administered, config_for, write_model


@pytest.fixture
def served(loop: Loop, tmp_path: Path) -> Iterator[Administered]:
    """demo@1, with demo@2 on disk."""
    write_model(tmp_path / "models", version=1)
    with administered(loop, config_for(tmp_path / "models")) as found:
        write_model(tmp_path / "models", version=2)
        yield found


@pytest.mark.system
def test_it_loads_names_and_unloads(run: Run, served: Administered) -> None:
    def admin(*options: str) -> str:
        result = run("admin", *options, "--address", served.admin.address)
        return str(result.stdout)

    assert admin("load", "demo@2", "--alias", "stable") == "demo@2: available, named stable\n"
    assert served.version_of("demo") == "2"
    assert admin("alias", "demo@1", "--alias", "stable") == "demo@1: available, named stable\n"
    assert json.loads(admin("unload", "demo@2", "--json"))["state"] == "unspecified"
    assert admin("alias", "demo", "--alias", "stable") == "demo@1: available\n"
    assert admin("unload", "demo@1") == "demo@1: unloaded\n"
    run("admin", "unload", "demo@1", "--address", served.admin.address, code=2, says="demo@1")
