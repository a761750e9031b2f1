from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server.config import ServeConfig
from logitsieve.server.console.why_not import read_parts, route, why_not
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


def test_a_word_that_no_probed_list_holds(demo: LocalDecoder) -> None:
    candidates = demo.index.head("screen").candidates(HIDDEN, 5).ids
    for word in range(0, 300, 10):
        facts = reasons(demo, word=word, head="screen")
        [stage] = [stage for stage in facts["stages"] if stage["stage"] == "list"]
        assert stage["passed"] == facts["computed"] == (word in candidates)
        assert facts["lists"]["count"] >= len(stage["listed_in"])
        if word not in candidates:
            assert dropped_by(facts) == "list"


def test_a_word_that_the_sketch_drops(demo: LocalDecoder) -> None:
    computed = demo.index.head("certified").candidates(HIDDEN, 5).ids
    stages = set()
    for word in np.setdiff1d(np.arange(300), computed)[::5]:
        facts = reasons(demo, word=int(word), head="certified")
        assert not facts["computed"]
        stages.add(dropped_by(facts))
        for stage in facts["stages"]:
            if "bound" in stage:
                assert stage["passed"] == (stage["bound"] >= stage["needed"])
                assert facts["logit"] <= stage["bound"] + 1e-5
    assert stages <= {"coarse", "fine", "exact"}
    assert stages & {"coarse", "fine"}


def test_a_list_that_is_scanned_through_the_sketch(demo: LocalDecoder) -> None:
    for word in range(0, 300, 10):
        facts = reasons(demo, word=word, head="screen", knobs={"prescreen": 1})
        stages = [stage["stage"] for stage in facts["stages"]]
        assert stages[:2] == ["list", "coarse"]
        if facts["answered"]:
            assert dropped_by(facts) == ""


def test_constraints(demo: LocalDecoder) -> None:
    best = int(demo.topk(HIDDEN, 1, head="exact").ids[0, 0])
    banned = reasons(demo, word=best, head="exact", banned=[best])
    assert not banned["answered"]
    assert banned["stages"][0] == {
        "stage": "constraint",
        "passed": False,
        "constraint": "banned",
    }
    other = reasons(demo, word=best, head="exact", allowed=[*range(best), *range(best + 1, 300)])
    assert other["stages"][0]["constraint"] == "allowed"
    assert reasons(demo, word=best, head="exact", banned=[(best + 1) % 300])["stages"][0]["passed"]


def test_a_context_that_is_left_to_the_fallback(demo: LocalDecoder) -> None:
    facts = reasons(demo, word=3, head="screen", knobs={"escalate": 1.0})
    assert facts["fallback"]
    assert facts["stages"][0]["escalated"]


def test_an_index_of_ids_alone(bare: LocalDecoder) -> None:
    facts = why_not(bare, make_hidden(1, 8), {"word": 3, "k": 2}, CONFIG)
    assert (facts["word"], facts["lists"], facts["frequency"]) == (None, None, None)


@pytest.mark.parametrize("word", [None, "unknown", 300])
def test_no_word_to_ask_about(demo: LocalDecoder, word: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^word: "):
        reasons(demo, word=word)


@pytest.mark.parametrize("probes", [1, 3])
def test_the_route_is_that_of_the_kernel(demo: LocalDecoder, probes: int) -> None:
    screen, hidden = read_parts(demo.index)["screen"], make_hidden(20, seed=5)
    offsets, ids = screen["offsets"], screen["ids"]
    head = demo.index.head("screen", probes=probes)
    for row, clusters in enumerate(route(screen, hidden, probes, -1.0).clusters):
        lists = [ids[offsets[c] : offsets[c + 1]] for c in clusters]
        candidates = head.candidates(hidden[row : row + 1], 1).ids
        assert np.array_equal(np.sort(candidates), np.unique(np.concatenate(lists)))


def test_rows_far_from_every_centroid_escalate(demo: LocalDecoder) -> None:
    screen, hidden = read_parts(demo.index)["screen"], make_hidden(30, seed=6)
    way = route(screen, hidden, 1, 0.5)
    reply = demo.topk(hidden, 1, head="screen", knobs={"escalate": 0.5})
    assert np.array_equal(way.escalated, reply.answer.fallback)
    assert 0 < way.escalated.sum() < 30


def test_files_that_were_replaced_are_another_index(
    shown_models: Path, tmp_path: Path, kernel_cache: Path
) -> None:
    folder = tmp_path / "demo" / "1"
    shutil.copytree(shown_models / "demo" / "1", folder)
    index = open_index(folder, kernel_cache=kernel_cache)
    assert {"screen", "sketch"} <= read_parts(index).keys()
    shutil.rmtree(folder)
    shutil.copytree(shown_models / "demo" / "2", folder)
    with pytest.raises(InvalidRequest, match="replaced"):
        read_parts(index)
