from pathlib import Path

import numpy as np
import pytest

from benchmarks import batches as measuring
from benchmarks.plots import draw_batches
from benchmarks.raw import GRADED
from benchmarks.tables import races
from logitsieve.index import open_index
from logitsieve.utils.options import no_progress


def test_every_head_is_swept_and_shown(
    gguf_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "SIZES", (1, 3, 8))
    with open_index(gguf_index) as index:
        hidden_states = np.random.default_rng(0).standard_normal((5, index.dim), np.float32)
        found = measuring.measure(index, hidden_states, no_progress)
        shape = [index.vocab_size, index.dim, index.manifest.dtype]
    assert list(found) == ["full", *GRADED]
    for times in found.values():
        assert list(times) == ["1", "3", "8"]
        assert min(times.values()) > 0
    found["full"] = {"1": 10.0, "3": 12.5, "8": 2.0}
    results = {"indexes": {"small": {"shape": shape, "us_per_row": found}}}
    first = races.batches(results).splitlines()[2]
    assert first.startswith(
        "| small: V = 560, D = 64 | `full` | 10.0 | 12.5 | 2.00 | 1.25x (B = 3)"
    )
    draw_batches(results, tmp_path / "batches.svg")
    drawn = (tmp_path / "batches.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {text} -->" in drawn for text in ("small", "rows a call", *found))
