import shutil
from pathlib import Path
from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.console.why_not import why_not
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server.config import ServeConfig
from tests.synthetic import make_hidden

HIDDEN = make_hidden(1)
CONFIG = ServeConfig()


def reasons(decoder: LocalDecoder, **question: Any) -> dict[str, Any]:
    return why_not(decoder, HIDDEN, {"k": 5, **question}, CONFIG)


def dropped_by(facts: dict[str, Any]) -> str:
    return next((stage["stage"] for stage in facts["stages"] if not stage["passed"]), "")


def test_rank_and_logit_are_exact_for_every_word(demo: LocalDecoder) -> None:
    order = demo.topk(HIDDEN, 300, head="exact")
    for rank in (1, 5, 6, 300):
        word = int(order.ids[0, rank - 1])
        facts = reasons(demo, word=word, head="exact")
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
    computed = demo.index.head("certified").candidates(HIDDEN, 5).ids
    for word in range(0, 300, 5):
        facts = reasons(demo, word=word, head="certified")
        assert facts["computed"] == (word in computed)
        assert (dropped_by(facts) == "bounds") == (word not in computed)
    # A list that is scanned through the sketch.
    listed = demo.index.head("screen").candidates(HIDDEN, 5).ids
    computed = demo.index.head("screen", prescreen=1).candidates(HIDDEN, 5).ids
    for word in range(0, 300, 10):
        facts = reasons(demo, word=word, head="screen", knobs={"prescreen": 1})
        passed = {stage["stage"]: stage["passed"] for stage in facts["stages"]}
        assert [*passed] == ["list", "bounds", "best"]
        assert (passed["list"], passed["bounds"]) == (word in listed, word in computed)
        if facts["answered"]:
            assert dropped_by(facts) == ""


def test_constraints_fallback_and_ids_alone(demo: LocalDecoder, bare: LocalDecoder) -> None:
    best = int(demo.topk(HIDDEN, 1, head="exact").ids[0, 0])
    banned = reasons(demo, word=best, head="exact", banned=[best])
    assert not banned["answered"]
    assert banned["stages"][0] == {"stage": "constraint", "passed": False, "constraint": "banned"}
    other = reasons(demo, word=best, head="exact", allowed=[*range(best), *range(best + 1, 300)])
    assert other["stages"][0]["constraint"] == "allowed"
    assert reasons(demo, word=best, head="exact", banned=[(best + 1) % 300])["stages"][0]["passed"]
    facts = reasons(demo, word=3, head="screen", knobs={"escalate": 1.0})
    assert facts["fallback"]
    assert facts["stages"][0]["escalated"]
    facts = why_not(bare, make_hidden(1, 8), {"word": 3, "k": 2}, CONFIG)
    assert (facts["word"], facts["lists"]) == (None, None)


@pytest.mark.parametrize("word", [None, "unknown", 300])
def test_no_word_to_ask_about(demo: LocalDecoder, word: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^word: "):
        reasons(demo, word=word)


def test_files_that_were_replaced_are_another_index(
    shown_models: Path, tmp_path: Path, kernel_cache: Path
) -> None:
    folder = tmp_path / "demo" / "1"
    shutil.copytree(shown_models / "demo" / "1", folder)
    decoder = LocalDecoder(open_index(folder, kernel_cache=kernel_cache))
    assert reasons(decoder, word=3)["lists"]["clusters"] == 6
    shutil.rmtree(folder)
    shutil.copytree(shown_models / "demo" / "2", folder)
    with pytest.raises(InvalidRequest, match="replaced"):
        reasons(decoder, word=3)
