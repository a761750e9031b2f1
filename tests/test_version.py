import importlib
from importlib import metadata

import pytest

from logitsieve import version


def test_it_is_that_of_the_installed_distribution_if_any(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    for found, expected in ({"logitsieve": "1.2.3"}.__getitem__, "1.2.3"), (missing, "0+unknown"):
        monkeypatch.setattr(metadata, "version", found)
        assert importlib.reload(version).__version__ == expected
    monkeypatch.undo()
    importlib.reload(version)
