import shutil
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.console.answers import draws, top, why_not
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server.config import ServeConfig
from tests.oracle import logits64
from tests.synthetic import make_hidden

HIDDEN = make_hidden(1)
CONFIG = ServeConfig()


@pytest.mark.parametrize("head", ["", "full", "sketch", "screen"])
def test_the_answer_of_a_head_with_its_probabilities(demo: LocalDecoder, head: str) -> None:
    facts = top(demo, HIDDEN, {"k": 5, "head": head}, CONFIG)
    reply = demo.topk(HIDDEN, 5, head=head)
    assert [word["id"] for word in facts["words"]] == reply.ids[0].tolist()
    assert [word["logit"] for word in facts["words"]] == reply.logits[0].tolist()
    assert (facts["head"], facts["proven"]) == (reply.answer.head, bool(reply.answer.proven[0]))
    softmax = demo.index.softmax
    logits = logits64(softmax.weight, softmax.bias, HIDDEN)[0]
    true = np.exp(logits - np.logaddexp.reduce(logits))
    for word in facts["words"]:
        assert word["low"] * (1 - 1e-6) <= true[word["id"]] <= word["high"] * (1 + 1e-6)
        assert word["probability"] == pytest.approx(exp(word["log_prob"]))


def test_knobs_precision_and_constraints(demo: LocalDecoder) -> None:
    facts = top(demo, HIDDEN, {"head": "screen", "knobs": {"probes": 3}}, CONFIG)
    assert facts["knobs"]["probes"] == 3
    assert top(demo, HIDDEN, {"min_precision": 1.0}, CONFIG)["proven"]
    best = top(demo, HIDDEN, {"head": "full"}, CONFIG)["words"][0]
    banned = top(demo, HIDDEN, {"head": "full", "banned": [best["id"]]}, CONFIG)["words"]
    assert best["id"] not in [word["id"] for word in banned]
    only = top(demo, HIDDEN, {"k": 2, "allowed": ["word9", 12]}, CONFIG)["words"]
    assert {word["id"] for word in only} == {9, 12}
    with pytest.raises(InvalidRequest, match="at most 1"):
        top(demo, HIDDEN, {"banned": [1, 2]}, ServeConfig(max_constraint_ids=1))


def test_equal_seeds_draw_equal_words(demo: LocalDecoder) -> None:
    question = {"samples": 50, "seed": 7, "top_p": 0.9, "top_k": 20, "head": "full"}
    facts = draws(demo, HIDDEN, question, CONFIG)
    assert {**facts, "us": 0} == {**draws(demo, HIDDEN, question, CONFIG), "us": 0}
    assert sum(word["count"] for word in facts["words"]) == 50
    counts = [word["count"] for word in facts["words"]]
    assert counts == sorted(counts, reverse=True)
    assert facts["proven"]


def reasons(decoder: LocalDecoder, **question: Any) -> dict[str, Any]:
    return why_not(decoder, HIDDEN, {"k": 5, **question}, CONFIG)


def dropped_by(facts: dict[str, Any]) -> str:
    return next((stage["stage"] for stage in facts["stages"] if not stage["passed"]), "")


def test_rank_and_logit_are_exact_for_every_word(demo: LocalDecoder) -> None:
    order = demo.topk(HIDDEN, 300, head="full")
    for rank in (1, 5, 6, 300):
        word = int(order.ids[0, rank - 1])
        facts = reasons(demo, word=word, head="full")
        assert (facts["rank"], facts["answered"]) == (rank, rank <= 5)
        assert facts["logit"] == float(order.logits[0, rank - 1])
        assert facts["best"]["id"] == order.ids[0, 0]
        assert dropped_by(facts) == ("" if rank <= 5 else "best")


def test_words_that_no_probed_list_holds_or_a_bound_drops(demo: LocalDecoder) -> None:
    candidates = demo.index.head("screen").candidates(HIDDEN, 5).ids
    for word in range(0, 300, 10):
        facts = reasons(demo, word=word, head="screen")
        [stage] = [stage for stage in facts["stages"] if stage["stage"] == "list"]
        assert stage["passed"] == facts["computed"] == (word in candidates)
        assert facts["lists"]["count"] >= stage["passed"]
        if word not in candidates:
            assert dropped_by(facts) == "list"
    computed = demo.index.head("sketch").candidates(HIDDEN, 5).ids
    for word in range(0, 300, 5):
        facts = reasons(demo, word=word, head="sketch")
        assert facts["computed"] == (word in computed)
        assert (dropped_by(facts) == "bounds") == (word not in computed)


def test_constraints_fallback_and_ids_alone(demo: LocalDecoder, bare: LocalDecoder) -> None:
    best = int(demo.topk(HIDDEN, 1, head="full").ids[0, 0])
    banned = reasons(demo, word=best, head="full", banned=[best])
    assert not banned["answered"]
    assert banned["stages"][0] == {"stage": "constraint", "passed": False, "constraint": "banned"}
    other = reasons(demo, word=best, head="full", allowed=[*range(best), *range(best + 1, 300)])
    assert other["stages"][0]["constraint"] == "allowed"
    assert reasons(demo, word=best, head="full", banned=[(best + 1) % 300])["stages"][0]["passed"]
    facts = reasons(demo, word=3, head="screen", knobs={"escalate": 1.0})
    assert facts["fallback"]
    assert facts["stages"][0]["escalated"]
    facts = why_not(bare, make_hidden(1, 8), {"word": 3, "k": 2}, CONFIG)
    assert (facts["word"], facts["lists"]) == (None, None)


def test_replaced_files_are_refused(shown_models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "demo" / "1"
    shutil.copytree(shown_models / "demo" / "1", folder)
    decoder = LocalDecoder(open_index(folder))
    assert reasons(decoder, word=3)["lists"]["clusters"] == 6
    shutil.rmtree(folder)
    shutil.copytree(shown_models / "demo" / "2", folder)
    with pytest.raises(InvalidRequest, match="replaced"):
        reasons(decoder, word=3)
