"""A screen beside `estimated`: built for a target, or if it is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.evaluation import evaluate
from logitsieve.heads.certified import GRADES
from logitsieve.index import Index
from logitsieve.index_builder import BuildConfig, build
from tests.index_builder.clustered import make_contexts
from tests.synthetic import make_hidden, make_softmax

V, D, ROWS, TOPICS = 1500, 208, 3000, 200  # long rows of a flat spectrum, which get levels
CONFIG = BuildConfig(clusters_tried=(TOPICS,), rounds=1, steps=5, batch_rows=64)
TARGET = {"p1": 0.95, "p5": 0.9}
SOFTMAX = make_softmax(V, D, scale=0.3)
GATHERED = make_contexts(ROWS + 800, D, TOPICS, noise=0.2)
ANYWHERE = make_hidden(ROWS + 800, D, scale=2.0)


def built(out: Path, contexts: np.ndarray, heldout: Sequence[np.ndarray], **more: Any) -> Index:
    given = {"config": CONFIG, "progress": None, **more}
    return build(
        SOFTMAX.weight, SOFTMAX.bias, contexts[:ROWS], out / "lm" / "1", heldout=heldout, **given
    )


def test_a_screen_with_a_target_falls_back_on_estimated(tmp_path: Path) -> None:
    index = built(tmp_path, GATHERED, [GATHERED[ROWS:]], target_precision=TARGET)
    assert index.heads == ("exact", "certified", *GRADES, "screen")
    assert (index.default_head, index.manifest.config["fallback"]) == ("screen", "estimated")
    screen, exact = index.head("screen"), index.head("exact")
    judged = evaluate(screen, exact, [GATHERED[ROWS:]], (1, 5))
    assert all(judged.precision[int(name[1:])].low >= least for name, least in TARGET.items())
    far = screen.topk(ANYWHERE[:50], 5)
    assert far.fallback.mean() > 0.9
    assert not far.exact.any()
    right = far.ids == exact.topk(ANYWHERE[:50], 5).ids
    assert right[far.fallback].all()


def test_a_screen_that_nobody_asked_for_is_left_out(tmp_path: Path) -> None:
    index = built(tmp_path, GATHERED, [GATHERED[ROWS:]])
    assert index.heads == ("exact", "certified", *GRADES)
    assert (index.default_head, index.manifest.config["fallback"]) == ("certified", "estimated")


def test_the_worst_text_decides(tmp_path: Path) -> None:
    texts = [GATHERED[ROWS:], ANYWHERE[ROWS:]]
    index = built(tmp_path, GATHERED, texts, target_precision=TARGET, best_effort=True)
    assert index.manifest.heads["screen"].config["escalated"] > 0.4


def test_a_screen_that_is_named_is_built(tmp_path: Path) -> None:
    index = built(tmp_path, ANYWHERE, [ANYWHERE[ROWS:]], heads=("exact", "screen", "certified"))
    assert "screen" in index.heads
