from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.server.console.parts import read_parts
from logitsieve.server.console.screen import cluster_facts, route, screen_facts
from tests.server.console.conftest import KEPT
from tests.synthetic import make_hidden


def test_lists_and_coverage(demo: LocalDecoder) -> None:
    facts, screen = screen_facts(demo), read_parts(demo.index)["screen"]
    sizes = np.diff(screen["offsets"])
    assert facts["clusters"] == len(sizes) == len(facts["sizes"])
    assert (facts["longest"], sum(facts["sizes"])) == (sizes.max(), len(screen["ids"]))
    assert facts["listed"] == len(np.unique(screen["ids"]))
    contexts, hidden = facts["contexts"], make_hidden(KEPT)
    assert contexts["rows"] == KEPT
    best = demo.topk(hidden, 1, head="exact").ids == demo.topk(hidden, 1, head="screen").ids
    assert contexts["best_listed"] == best.mean()  # one list is looked at: the stored probes
    assert len(contexts["blocks"]) >= 1
    assert contexts["worst"] == min(contexts["blocks"])
    scanned = demo.topk(hidden, 1, head="screen").answer.scanned
    assert contexts["candidates"] == scanned.mean()


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


def test_words_of_a_list_come_in_pages(demo: LocalDecoder) -> None:
    facts = cluster_facts(demo, 0, 0)
    assert [word["lists"] for word in facts["words"]] == sorted(w["lists"] for w in facts["words"])
    assert len(facts["words"]) == facts["size"]
    assert cluster_facts(demo, 0, facts["size"])["words"] == []
    with pytest.raises(InvalidRequest, match=r"^number: "):
        cluster_facts(demo, 6, 0)


def test_an_index_without_a_screen(bare: LocalDecoder) -> None:
    with pytest.raises(InvalidRequest, match="a screen"):
        screen_facts(bare)
