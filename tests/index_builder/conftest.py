from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index import HeadEntry, Index, open_index, write_index


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


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Index]:
    """An index whose rows lie on a circle; list 0 holds the right half, list 1 the left."""
    angles = np.linspace(0, 2 * np.pi, 20, endpoint=False) + 0.05
    weight = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    halves = [np.flatnonzero(weight[:, 0] >= -0.4), np.flatnonzero(weight[:, 0] <= 0.4)]

    def write(*, screen: bool = True, escalate: float = -1.0, **options: Any) -> Index:
        arrays = {
            "centroids": np.array([[1, 0], [-1, 0]], np.float32),
            "offsets": np.cumsum([0, *map(len, halves)]).astype(np.int32),
            "ids": np.concatenate(halves).astype(np.int32),
        }
        heads = {"exact": HeadEntry()} | (
            {"screen": HeadEntry("screen", {"escalate": escalate})} if screen else {}
        )
        path = write_index(
            tmp_path / "models" / "circle" / "3",
            softmax=Softmax(weight, np.zeros(len(angles), np.float32)),
            parts={"screen": arrays} if screen else {},
            heads=heads,
            default_head="exact",
            **options,
        )
        return open_index(path, verify="sizes")

    return write
