import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.server.running import Administered, Loop, administered, config_of, write_model


@pytest.fixture
def served(loop: Loop, tmp_path: Path, kernel_cache: Path) -> Iterator[Administered]:
    """demo@1, with demo@2 on disk."""
    write_model(tmp_path / "models", version=1)
    with administered(loop, config_of(tmp_path / "models", kernel_cache)) as found:
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
    run("admin", "unload", "demo@1", "--address", served.admin.address, code=1, says="demo@1")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("load", "demo"), "model: got demo, allowed: name@version"),
        (("unload", "demo@two"), "model: got demo@two"),
        (("unload", "demo@2", "--drain-s", "-1"), "drain_s: got -1"),
        (("load", "demo@2", "--drain-s", "3601"), "drain_s: got 3601.0, allowed: seconds in 0..36"),
        (("alias", "demo@2", "--timeout-s", "3601"), "timeout_s: got 3601.0, allowed: a positive"),
        (("load", "demo@2", "--token-file", "nowhere"), "token_file: got nowhere"),
        (("remove", "demo@2"), "remove"),
    ],
)
def test_wrong_options(run: Run, options: tuple[str, ...], reason: str) -> None:
    run("admin", *options, code=2, says=reason)
