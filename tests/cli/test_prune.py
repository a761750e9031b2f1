import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """demo@1 to demo@12, other@1 and other@2, and what is no version."""
    for version in range(1, 13):
        (tmp_path / "demo" / str(version) / "inside").mkdir(parents=True)
    for folder in ("other/1", "other/2", "other/.tmp-1", "UPPER/1", "demo/01"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "README").write_text("")
    return tmp_path


def left(models: Path, name: str) -> list[str]:
    return sorted(path.name for path in (models / name).iterdir() if path.is_dir())


def test_the_highest_and_those_that_aliases_name_stay(run: Run, models: Path) -> None:
    (models / "demo" / "aliases.json").write_text('{"stable": 2, "canary": 12, "gone": 99}')
    result = run("prune", models, "--keep", 3, "--json")
    removed = [str(models / "demo" / str(n)) for n in (1, *range(3, 10))]
    assert json.loads(result.stdout) == {"removed": removed}
    assert left(models, "demo") == ["01", "10", "11", "12", "2"]
    assert left(models, "other") == [".tmp-1", "1", "2"]
    assert left(models, "UPPER") == ["1"]
    assert "0 versions removed" in run("prune", models).stdout


def test_what_cannot_be_pruned_is_kept(run: Run, models: Path, tmp_path: Path) -> None:
    (models / "other" / "aliases.json").write_text("[]")
    before = left(models, "demo")
    run("prune", models, "--keep", 1, code=1, says="aliases.json")
    assert left(models, "demo") == before
    run("prune", tmp_path / "nowhere", code=2)
    run("prune", tmp_path, "--keep", 0, code=2)
