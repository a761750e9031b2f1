from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.server.config import ServeConfig
from logitsieve.server.console.decode import MOST_STEPS, decode
from logitsieve.training.trainer import LanguageModel

CONFIG = ServeConfig()
TEXT = "say7 nothing say12"


def by_torch(decoder: LocalDecoder, ids: list[int]) -> np.ndarray:
    model = LanguageModel.load(decoder.index.path.parent)
    with torch.inference_mode():
        logits: np.ndarray = model(torch.tensor([ids]))[0][0, -1].numpy()
    return logits


def test_each_word_is_the_best_after_those_before_it(spoken: LocalDecoder) -> None:
    found = decode(spoken, {"text": TEXT, "steps": 6, "k": 3}, CONFIG)
    assert found["unknown"] == ["nothing"]
    ids = [7, 0, 12]
    for step in found["steps"]:
        logits = by_torch(spoken, ids)
        assert [one["id"] for one in step["candidates"]] == np.argsort(-logits)[:3].tolist()
        assert step["candidates"][0]["logit"] == pytest.approx(logits.max(), rel=1e-4)
        assert step["word"]["id"] == int(logits.argmax())
        ids.append(step["word"]["id"])
    assert len(found["steps"]) == 6 or ids[-1] == 1


def test_draws_follow_their_seed(spoken: LocalDecoder) -> None:
    asked: dict[str, Any] = {"text": TEXT, "steps": 8, "temperature": 3.0}
    runs = [
        [step["word"]["id"] for step in decode(spoken, {**asked, "seed": seed}, CONFIG)["steps"]]
        for seed in (1, 1, 2, 3)
    ]
    assert runs[0] == runs[1]
    assert len({tuple(run) for run in runs}) > 1


def test_a_paragraph_ends(spoken: LocalDecoder) -> None:
    only_end = {"text": TEXT, "steps": 5, "allowed": [1], "k": 1}
    [step] = decode(spoken, only_end, CONFIG)["steps"]
    assert step["word"]["word"] == "<eos>"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": MOST_STEPS + 1}, "steps"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1, "seed": "x"}, "seed"),
        ({"text": ""}, "text"),
        ({"text": None}, "text"),
        ({"head": "none"}, "head"),
    ],
)
def test_what_is_wrong_is_named(spoken: LocalDecoder, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(spoken, {"text": TEXT, **changes}, CONFIG)
    assert caught.value.field == field
