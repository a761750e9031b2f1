from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def _home(
    tmp_path_factory: pytest.TempPathFactory, share_kernels: Callable[[Path], Path]
) -> Iterator[None]:
    """`build` opens what it wrote, which remembers the verification in the user's cache folder."""
    folder = tmp_path_factory.mktemp("home")
    share_kernels(folder / ".cache" / "logitsieve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        yield
