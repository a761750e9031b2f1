from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.index import Index, open_index, verify_index
from logitsieve.index_builder import BuildConfig, build
from tests.index_builder.clustered import make_contexts
from tests.synthetic import make_softmax

HEADS = ("full", "screen", "svd", "lsh", "frequency")
CONFIG = BuildConfig(clusters=8, rounds=1, steps=10, batch_rows=64, svd_width=8)
SOFTMAX = make_softmax(vocab_size=150, dim=16)
HIDDEN = make_contexts(200, seed=3)


def build_all(out: Path) -> Index:
    contexts = make_contexts(1200)
    return build(SOFTMAX.weight, SOFTMAX.bias, contexts, out, heads=HEADS, config=CONFIG)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return build_all(tmp_path_factory.mktemp("built") / "lm" / "1")


def test_heads_are_nearly_right_and_equal_each_time(index: Index, tmp_path: Path) -> None:
    assert set(index.heads) == set(HEADS)
    true = index.head("full").topk(HIDDEN, 1).ids
    for name in HEADS:
        assert (index.head(name).topk(HIDDEN, 1).ids == true).mean() > 0.9, name
    assert build_all(tmp_path / "lm" / "1").digest == index.digest
    assert "lsh.safetensors" in verify_index(index.path)


def test_previews_answer_what_a_screen_leaves_if_asked(tmp_path: Path) -> None:
    """Also if they are the fastest that meets a target; `proven` is false then."""
    heads, contexts = ("full", "sketch", "screen", "svd"), make_contexts(3000)
    configs = {
        "svd": replace(CONFIG, fallback="svd", svd_width=None),
        "auto": replace(CONFIG, svd_width=None),
    }
    target = {"p1": 0.9, "p5": 0.9}
    built: dict[str, Index] = {}
    for number, (asked, config) in enumerate(configs.items(), start=1):
        given: Any = {"config": config, "target_precision": target}
        out = tmp_path / "lm" / str(number)
        built[asked] = build(SOFTMAX.weight, SOFTMAX.bias, contexts, out, heads=heads, **given)
    assert built["svd"].manifest.config["fallback"] == "svd"
    assert built["auto"].manifest.config["fallback"] in ("svd", "sketch")  # whichever was faster
    far = np.random.default_rng(4).standard_normal((40, 16)).astype(np.float32) * 3
    screen = built["svd"].head("screen", escalate=1.0)
    top, wanted = screen.topk(far, 5), built["svd"].head("svd").topk(far, 5)
    assert top.fallback.all()
    assert not top.proven.any()
    np.testing.assert_array_equal(top.ids, wanted.ids)


@pytest.mark.parametrize("name", HEADS[1:])
def test_other_knobs_over_what_was_opened(index: Index, name: str) -> None:
    head = index.head(name)
    for knob, entry in head.knob_table.items():
        if entry.whole:
            most = head.with_knobs(**{knob: entry.high})
            assert most.knobs[knob] >= head.knobs[knob]
            assert most.topk(HIDDEN[:3], 5).ids.shape == (3, 5)


@pytest.mark.parametrize("verify", ["full", "sizes"])
def test_an_opened_index_answers_alike(index: Index, verify: Any) -> None:
    again = open_index(index.path, verify=verify)
    assert again.digest == index.digest
    for name in HEADS:
        mine, theirs = index.head(name), again.head(name)
        assert mine.knobs == theirs.knobs
        np.testing.assert_equal(mine.topk(HIDDEN, 5), theirs.topk(HIDDEN, 5))
