from collections.abc import Callable, Iterable, Iterator
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


@pytest.fixture
def always_a_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For few words all logits may take less time, and the sketch is left out."""

    def widest(choices: Iterable[int], us: Callable[[int], float]) -> int:
        return max(choices, key=lambda first: (first, us(first)))

    monkeypatch.setattr("logitsieve.index_builder.fit.sketch.fastest", widest)
