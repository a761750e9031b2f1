from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import open_index
from logitsieve.server.console.parts import read_parts


def test_files_that_were_replaced_are_another_index(
    shown_models: Path, tmp_path: Path, kernel_cache: Path
) -> None:
    folder = tmp_path / "demo" / "1"
    shutil.copytree(shown_models / "demo" / "1", folder)
    index = open_index(folder, kernel_cache=kernel_cache)
    assert {"screen", "sketch"} <= read_parts(index).keys()
    shutil.rmtree(folder)
    shutil.copytree(shown_models / "demo" / "2", folder)
    with pytest.raises(InvalidRequest, match="replaced"):
        read_parts(index)
