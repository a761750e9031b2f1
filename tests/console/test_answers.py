from math import exp
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.console.answers import draws, top
from logitsieve.decoding import LocalDecoder
from logitsieve.server.config import ServeConfig
from tests.oracle import logits64
from tests.refusals import refused
from tests.synthetic import make_hidden

HIDDEN = make_hidden(1)
CONFIG = ServeConfig()


@pytest.mark.parametrize("head", ["", "exact", "certified", "screen"])
def test_the_answer_of_a_head_with_its_probabilities(demo: LocalDecoder, head: str) -> None:
    facts = top(demo, HIDDEN, {"k": 5, "head": head}, CONFIG)
    reply = demo.topk(HIDDEN, 5, head=head)
    assert [word["id"] for word in facts["words"]] == reply.ids[0].tolist()
    assert [word["logit"] for word in facts["words"]] == reply.logits[0].tolist()
    assert (facts["head"], facts["exact"]) == (reply.answer.head, bool(reply.answer.exact[0]))
    softmax = demo.index.softmax
    logits = logits64(softmax.weight, softmax.bias, HIDDEN)[0]
    true = np.exp(logits - np.logaddexp.reduce(logits))
    for word in facts["words"]:
        assert word["low"] * (1 - 1e-6) <= true[word["id"]] <= word["high"] * (1 + 1e-6)
        assert word["probability"] == pytest.approx(exp(word["log_prob"]))


def test_knobs_precision_and_constraints(demo: LocalDecoder) -> None:
    facts = top(demo, HIDDEN, {"head": "screen", "knobs": {"probes": 3}}, CONFIG)
    assert facts["knobs"]["probes"] == 3
    assert top(demo, HIDDEN, {"min_precision": 1.0}, CONFIG)["exact"]
    best = top(demo, HIDDEN, {"head": "exact"}, CONFIG)["words"][0]
    banned = top(demo, HIDDEN, {"head": "exact", "banned": [best["id"]]}, CONFIG)["words"]
    assert best["id"] not in [word["id"] for word in banned]
    only = top(demo, HIDDEN, {"k": 2, "allowed": ["word9", 12]}, CONFIG)["words"]
    assert {word["id"] for word in only} == {9, 12}
    with pytest.raises(InvalidRequest, match="at most 1"):
        top(demo, HIDDEN, {"banned": [1, 2]}, ServeConfig(max_constraint_ids=1))


def test_equal_seeds_draw_equal_words(demo: LocalDecoder) -> None:
    question = {"samples": 50, "seed": 7, "top_p": 0.9, "top_k": 20}
    facts = draws(demo, HIDDEN, question, CONFIG)
    assert {**facts, "us": 0} == {**draws(demo, HIDDEN, question, CONFIG), "us": 0}
    assert sum(word["count"] for word in facts["words"]) == 50
    counts = [word["count"] for word in facts["words"]]
    assert counts == sorted(counts, reverse=True)
    assert facts["exact"]


@pytest.mark.parametrize(
    ("ask", "question", "field"),
    [
        (top, {"k": 0}, "k"),
        (top, {"k": "5"}, "k"),
        (top, {"head": 5}, "head"),
        (top, {"head": "screen", "knobs": {"probes": "1"}}, "knobs"),
        (top, {"banned": "word9"}, "banned"),
        (draws, {"samples": 0}, "samples"),
        (draws, {"seed": -1}, "seed"),
        (draws, {"temperature": "hot"}, "temperature"),
        (draws, {"top_k": 1.5}, "top_k"),
    ],
)
def test_senseless_questions(
    demo: LocalDecoder, ask: Any, question: dict[str, Any], field: str
) -> None:
    with refused(field):
        ask(demo, HIDDEN, question, CONFIG)
