"""The drift guard over gRPC: clients name no operating point, and are told which one answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logitsieve.api.results import Answer
from tests.server.materials import contexts, write_domains
from tests.server.running import Loop, Running, config_for, running
from tests.server.test_app import value
from tests.synthetic import make_head, make_softmax

ROWS, K = 100, 5  # of a call; all of them fit into the queue of rows to be judged
JUDGED = 'logitsieve_shadow_rows_total{head="%s",model="demo"}'
LEVEL = 'logitsieve_guard_level{model="demo",version="1"}'


@pytest.fixture
def drifting(loop: Loop, tmp_path: Path, kernel_cache: Path) -> Iterator[Running]:
    """A model that is fitted to domain 1; every row is judged."""
    write_domains(tmp_path)
    config = config_for(tmp_path, kernel_cache=kernel_cache, shadow_share=1.0, shadow_cpu=1.0)
    with running(loop, config) as run:
        yield run


def judged(run: Running) -> float:
    return sum(value(run, JUDGED % head) for head in ("exact", "screen"))


def ask(run: Running, domain: int, rows: int) -> Answer:
    """How the last call was answered, when the rows of all of them have been judged."""
    before, answer = judged(run), None
    for seed in range(rows // ROWS):
        hidden = contexts(domain, ROWS, seed=10 + seed)
        reply = run.client.topk(hidden, K, model="demo")
        answer = reply.answer
        if answer.head == "exact":
            exact = make_head("exact", make_softmax()).topk(hidden, K)
            assert (reply.logits == exact.logits).all()
        while judged(run) < before + (seed + 1) * ROWS:
            pass
    assert answer is not None
    return answer


def test_auto_moves_to_a_safer_point_says_so_and_returns(drifting: Running) -> None:
    at_first = ask(drifting, domain=1, rows=200)
    assert (at_first.head, at_first.knobs["probes"]) == ("screen", 1)
    assert value(drifting, LEVEL) == 0

    elsewhere = ask(drifting, domain=2, rows=1200)
    assert elsewhere.head == "exact"
    assert elsewhere.exact.all()
    assert value(drifting, LEVEL) == 2

    back = ask(drifting, domain=1, rows=2400)
    assert (back.head, back.knobs["probes"]) == ("screen", 1)
    assert value(drifting, LEVEL) == 0
    moves = 'logitsieve_guard_moves_total{direction="%s",model="demo"}'
    assert value(drifting, moves % "safer") == 2
    assert value(drifting, moves % "back") >= 1
