import importlib
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from logitsieve import version


def test_it_is_that_of_the_installed_distribution_if_any(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    for found, expected in ({"logitsieve": "1.2.3"}.__getitem__, "1.2.3"), (missing, "0+unknown"):
        monkeypatch.setattr(metadata, "version", found)
        assert importlib.reload(version).__version__ == expected
    monkeypatch.undo()
    importlib.reload(version)


def test_the_citation_is_of_this_version() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
