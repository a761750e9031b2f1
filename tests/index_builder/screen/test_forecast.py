"""A screen beside a sketch: built where it is cheaper at equal precision, or a line why not."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.evaluation import evaluate
from logitsieve.index import Index
from logitsieve.index_builder import BuildConfig, build
from logitsieve.index_builder.screen.cascade import ScreenCosts
from logitsieve.index_builder.screen.forecast import ScreenForecast, forecast
from tests.index_builder.clustered import make_contexts, make_inputs
from tests.synthetic import make_hidden, make_softmax

V, D, ROWS, TOPICS = 1500, 208, 3000, 200
CONFIG = BuildConfig(clusters_tried=(TOPICS,), rounds=1, steps=5, batch_rows=64)
TARGET = {"p1": 0.95, "p5": 0.9}
SOFTMAX = make_softmax(V, D, scale=0.3)
GATHERED = make_contexts(ROWS + 800, D, TOPICS, noise=0.2)
ANYWHERE = make_hidden(ROWS + 800, D, scale=2.0)


pytestmark = pytest.mark.usefixtures("always_a_sketch")


def built(out: Path, contexts: np.ndarray, heldout: Sequence[np.ndarray], **more: Any) -> Index:
    given = {"config": CONFIG, "progress": None, **more}
    return build(
        SOFTMAX.weight, SOFTMAX.bias, contexts[:ROWS], out / "lm" / "1", heldout=heldout, **given
    )


def test_a_screen_that_pays_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = built(tmp_path, GATHERED, [GATHERED[ROWS:]], target_precision=TARGET)
    assert index.heads == ("full", "sketch", "screen")
    assert (index.default_head, index.manifest.config["fallback"]) == ("screen", "sketch")
    assert "a screen" not in caplog.text
    screen, full = index.head("screen"), index.head("full")
    judged = evaluate(screen, full, [GATHERED[ROWS:]], (1, 5))
    assert all(judged.precision[int(name[1:])].low >= least for name, least in TARGET.items())
    far = screen.topk(ANYWHERE[:50], 5)
    assert far.fallback.mean() > 0.9
    assert not far.proven.any()
    right = far.ids == full.topk(ANYWHERE[:50], 5).ids
    assert right[far.fallback].all()


@pytest.mark.parametrize("target", [None, TARGET])
def test_a_screen_that_loses_is_left_out_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, target: dict[str, float] | None
) -> None:
    index = built(tmp_path, ANYWHERE, [ANYWHERE[ROWS:]], target_precision=target)
    assert index.heads == ("full", "sketch")
    assert (index.default_head, index.manifest.config["fallback"]) == ("sketch", "sketch")
    note = index.manifest.config["screen_note"]
    assert note in caplog.text
    assert note.startswith("fitted to 3,000 contexts, a screen leaves ")
    assert "One held-out text was judged" in note


def test_the_worst_text_decides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = [GATHERED[ROWS:], ANYWHERE[ROWS:]]
    index = built(tmp_path, GATHERED, texts, target_precision=TARGET)
    assert "screen" not in index.heads
    assert "The worst of 2 held-out texts decided" in index.manifest.config["screen_note"]
    heads = ("full", "screen", "sketch")
    index = built(tmp_path / "named", ANYWHERE, [ANYWHERE[ROWS:]], heads=heads)
    assert "screen" in index.heads
    assert index.manifest.config["screen_note"] in caplog.text


@pytest.mark.parametrize("noise", [0.35, 4.0])
def test_more_contexts_are_needed_where_lists_fail(noise: float) -> None:
    _, inputs = make_inputs(rows=1600, noise=noise, vocab_size=400)
    wanted = replace(inputs, target={"p1": 0.99, "p5": 0.99})
    found = forecast(wanted, ScreenCosts(400.0, 1.0, 1.0))
    assert found.rows == 1600
    assert (found.needed > found.rows) == (noise > 1)
    assert (found.left > 0.5) == (noise > 1)


@pytest.mark.parametrize(
    ("needed", "said"),
    [
        (2.34e6, "from about 2,300,000 contexts on, which take as many tokens, 9 MB of text"),
        (math.inf, "from more than 3,600,000 contexts on, which take as many tokens, 14 MB"),
    ],
)
def test_the_line_says_how_much_text_a_screen_would_need(needed: float, said: str) -> None:
    line = ScreenForecast(0.96, 3600, needed).said(texts=5)
    assert line.startswith("fitted to 3,600 contexts, a screen leaves 96% of the held-out ones ")
    assert said in line
    assert "worst of 5" in line
