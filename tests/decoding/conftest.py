from functools import cache
from pathlib import Path

import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from tests.decoding.drawn import Whole, write_whole
from tests.server import running


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> Whole:
    """(V, tied) -> a decoder over `softmax_of`, with full, sketch and screen."""
    folder: Path = tmp_path_factory.mktemp("whole")

    @cache
    def opened(size: int, tied: bool) -> LocalDecoder:
        path = write_whole(folder, size, tied)
        return LocalDecoder(open_index(path, kernel_cache=kernel_cache))

    return opened


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> LocalDecoder:
    """A decoder over the index of `running.write_whole`, which has every head."""
    folder = tmp_path_factory.mktemp("models")
    path = running.write_whole(folder, "demo")
    return LocalDecoder(open_index(path, kernel_cache=kernel_cache))
