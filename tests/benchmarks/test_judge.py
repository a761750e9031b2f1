from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.llamacpp import judge as judging
from benchmarks.raw import GRADED
from demo.truth import argmax
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.llamacpp import GgufModel
from tests.llamacpp.small_model import Make

pytestmark = pytest.mark.usefixtures("llama_wheel")


def test_greedy_tokens_of_every_grade_are_judged(
    make_gguf: Make, gguf_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [list(range(300 + place, 305 + place)) for place in range(11)]
    monkeypatch.setattr(judging, "beginnings", lambda context, kind, cache, count: texts[:count])
    monkeypatch.setattr(judging, "LENGTH", 6)
    found = judging.judge_greedy(make_gguf(), gguf_index, 61, ["english"], threads=1)
    assert list(found) == ["greedy english"]
    counts = found["greedy english"]
    assert list(counts) == list(GRADED)
    assert all((one["tokens"], one["wrong"]) == (66, 0) for one in counts.values())
    assert counts["sketch 0"]["proven"] == 66


def test_other_tokens_than_the_argmax_are_counted(make_gguf: Make, gguf_index: Path) -> None:
    hidden_states = np.random.default_rng(0).standard_normal((20, 64), np.float32)
    best = argmax(GgufModel(make_gguf()).matrix, hidden_states)
    best[[3, 17]] += 1
    found = judging.Counts(Counter)
    judging.count_heads(found, LocalDecoder(open_index(gguf_index)), hidden_states, best)
    assert list(found) == ["full", *GRADED]
    assert all((one["tokens"], one["wrong"]) == (20, 2) for one in found.values())
