from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from logitsieve.api.results import Answer
from logitsieve.server.models.served import WINDOW, DriftGuard
from logitsieve.utils.options import no_progress
from tests.evaluation.test_operating_points import make_point
from tests.server.materials import contexts, write_domains
from tests.server.running import Loop, Running, config_for, running
from tests.server.test_app import value
from tests.synthetic import make_head, make_softmax


def rows(precision: float, seed: int, k: int = 1) -> Iterator[float]:
    random = np.random.default_rng(seed)
    while True:
        yield float((random.random(k) < precision).mean())


POINT = make_point("screen", probes=1)


def refuted_after(target: float, precision: float, seed: int, most: int, k: int = 1) -> int:
    """Rows until a point of this true precision is refuted at `target`; `most` if it is not."""
    guard = DriftGuard()
    for row, share in zip(range(most), rows(precision, seed, k), strict=False):
        if guard.add(POINT.setting, {1: share}) and guard.refuted(POINT, {1: target}):
            return row + 1
    return most


@pytest.mark.parametrize(("target", "k"), [(0.998, 1), (0.99, 5), (0.9, 1)])
def test_noise_does_not_refute_a_point_that_is_just_precise_enough(target: float, k: int) -> None:
    most = 10 * WINDOW
    found = [refuted_after(target, target, seed, most, k) for seed in range(60)]
    assert sum(rows < most for rows in found) <= 3


def test_a_drift_is_seen_soon_and_ks_points_and_precisions_are_judged_apart() -> None:
    assert {refuted_after(0.99, 0.6, seed, 900) for seed in range(20)} == {
        200
    }  # docs/monitoring.md
    found = [refuted_after(0.99, 0.94, seed, 30 * WINDOW) for seed in range(20)]
    assert max(found) < 30 * WINDOW
    guard, other = DriftGuard(), make_point("screen", probes=2)
    for _ in range(2 * WINDOW):
        guard.add(POINT.setting, {1: 1.0, 5: 0.2})
    assert guard.refuted(POINT, {1: 0.9, 5: 0.5})
    for goal in ({1: 0.99}, {5: 0.2}, {10: 0.99}, {}):
        assert not guard.refuted(POINT, goal)
    assert not guard.refuted(other, {5: 0.5})
    assert not guard.refuted(make_point("screen", probes=1, max_error=0), {5: 0.5})


ROWS, K = 100, 5  # of a call; all of them fit into the queue of rows to be judged
JUDGED = 'logitsieve_shadow_rows_total{head="%s",model="demo"}'
LEVEL = 'logitsieve_auto_disabled_points{model="demo",version="1"}'


@pytest.fixture
def drifting(loop: Loop, tmp_path: Path) -> Iterator[Running]:
    """A model that is fitted to domain 1; every row is judged."""
    write_domains(tmp_path)
    config = config_for(tmp_path, shadow_share=1.0, shadow_cpu=1.0)
    with running(loop, config) as run:
        yield run


def judged(run: Running) -> float:
    return sum(value(run, JUDGED % head) for head in ("full", "screen"))


def ask(run: Running, domain: int, rows: int) -> Answer:
    """How the last call was answered, when the rows of all of them have been judged."""
    before, answer = judged(run), None
    for seed in range(rows // ROWS):
        hidden_states = contexts(domain, ROWS, seed=10 + seed)
        reply = run.client.topk(hidden_states, K, model="demo")
        answer = reply.answer
        if answer.head == "full":
            full = make_head("full", make_softmax()).topk(hidden_states, K)
            assert (reply.logits == full.logits).all()
        while judged(run) < before + (seed + 1) * ROWS:
            pass
    assert answer is not None
    return answer


def test_auto_leaves_a_drifted_point(drifting: Running, caplog: pytest.LogCaptureFixture) -> None:
    at_first = ask(drifting, domain=1, rows=200)
    assert (at_first.head, at_first.knobs["probes"]) == ("screen", 1)
    assert value(drifting, LEVEL) == 0

    elsewhere = ask(drifting, domain=2, rows=4 * WINDOW)
    assert elsewhere.head == "full"
    assert elsewhere.proven.all()
    assert value(drifting, LEVEL) == 1
    assert "demo@1: AUTO leaves screen" in caplog.text

    assert ask(drifting, domain=1, rows=200).head == "full"  # it returns with another load
    drifting.server.repository.load("demo", 1, no_progress)
    assert ask(drifting, domain=1, rows=ROWS).head == "screen"
