from __future__ import annotations

import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from tests.server.running import write_whole


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> LocalDecoder:
    folder = tmp_path_factory.mktemp("models")
    return LocalDecoder(open_index(write_whole(folder, "demo"), kernel_cache=folder / "kernels"))
