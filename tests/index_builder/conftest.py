from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    share_kernels: Callable[[Path], Path],
) -> Path:
    """`build` opens what it wrote, which remembers the verification in the user's cache folder."""
    folder = tmp_path_factory.mktemp("home")
    share_kernels(folder / ".cache" / "logitsieve")
    monkeypatch.setenv("HOME", str(folder))
    return folder
