import importlib
from importlib import metadata

import pytest

from logitsieve import version


def test_it_is_that_of_the_installed_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: {"logitsieve": "1.2.3"}[name])
    assert importlib.reload(version).__version__ == "1.2.3"
    monkeypatch.undo()
    importlib.reload(version)


def test_a_checkout_that_is_not_installed_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert importlib.reload(version).__version__ == "0+unknown"
    monkeypatch.undo()
    importlib.reload(version)
