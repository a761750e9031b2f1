import asyncio
import logging
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.requests import TopKRequest
from logitsieve.api.results import RowRange, TopK
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server.metrics import Metrics
from logitsieve.server.models.routes import Version
from logitsieve.server.models.served import Served
from logitsieve.server.precision import (
    QUEUE,
    AnsweredRow,
    Judgement,
    PrecisionMetrics,
    Shadow,
    judge,
    shares,
)
from logitsieve.server.rpc.codec import to_resolved_spec
from logitsieve.v1 import decoder_pb2 as pb
from tests.oracle import best, log_sum_exp, logits64
from tests.server.materials import TARGET_PRECISION, contexts, write_domains
from tests.server.running import WAIT_S, Loop
from tests.server.test_metrics import samples
from tests.synthetic import make_softmax

AUTO = to_resolved_spec(pb.ModelSpec())
SCREEN = to_resolved_spec(pb.ModelSpec(head=pb.Head(name="screen", knobs={"probes": 1})))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return open_served(tmp_path_factory.mktemp("domains"))


def open_served(folder: Path) -> Served:
    return Served(LocalDecoder(open_index(write_domains(folder))))


def sampled(served: Served, hidden_states: np.ndarray, k: int, aim: Any = AUTO) -> AnsweredRow:
    """One row, answered as a request for it would be."""
    chosen = served.choose(aim, 1, k)
    reply = chosen.engine.answer(TopKRequest(hidden_states, k))
    answer = TopK(reply.ids, reply.logits, *reply.answer[4:7])
    return AnsweredRow(served, chosen, hidden_states, answer)


def test_hits_are_those_of_the_true_answer(served: Served) -> None:
    softmax, hidden_states = make_softmax(), contexts(2, 40)
    logits = logits64(softmax.weight, softmax.bias, hidden_states)
    missed = 0
    for row, all_V in zip(hidden_states, logits, strict=True):
        sample = sampled(served, row[None], 7, SCREEN)
        judgement = judge(sample)
        truth = best(all_V[None], 7)[0].tolist()
        answered = sample.answer.ids[0].tolist()
        for k in (1, 5, 7):
            assert judgement.hits[k] == len({*answered[:k]} & {*truth[:k]})
        lost = [each for each in truth if each not in answered]
        mass = np.exp(all_V[lost] - log_sum_exp(all_V)).sum()
        np.testing.assert_allclose(judgement.missed_mass, mass, rtol=1e-4)
        missed += bool(lost)
    assert missed > 10
    sample = sampled(served, contexts(2, 1), 5, to_resolved_spec(pb.ModelSpec(exact=True)))
    assert sample.answer.proven.all()
    judgement = judge(sample)  # a proven answer is its own truth
    assert (judgement.hits, judgement.missed_mass) == ({1: 1.0, 5: 5.0}, 0.0)


def offered(shadow: Shadow, served: Served, requests: int, rows: int) -> None:
    hidden_states = contexts(1, rows)
    chosen = served.choose(SCREEN, rows, 2)
    reply = chosen.engine.answer(TopKRequest(hidden_states, 2))
    for _ in range(requests):
        shadow.offer(served, chosen, hidden_states, reply)


def waiting(shadow: Shadow) -> list[AnsweredRow]:
    return [shadow._queue.get() for _ in range(shadow._queue.qsize())]  # type: ignore[misc]


def make_shadow(share: float, cpu: float = 1.0, **more: Any) -> Shadow:
    callbacks: dict[str, Any] = {"judged": lambda judgement: None, "lost": lambda *_: None}
    return Shadow(share, cpu, seed=5, **{**callbacks, **more})


def test_each_row_has_the_same_chance_whatever_its_request_is(served: Served) -> None:
    hidden_states = contexts(1, 4)
    counts = np.zeros(4)
    shadow = make_shadow(0.05)
    for _ in range(80):
        offered(shadow, served, 50, 4)
        for sample in waiting(shadow):
            counts[(hidden_states == sample.hidden_states).all(axis=1)] += 1
    # 4000 requests: 200 of each row, with a standard deviation of 14.
    assert (np.abs(counts - 200) < 4 * 14).all(), counts


def test_a_sample_is_a_copy_of_its_row(served: Served) -> None:
    shadow, hidden_states = make_shadow(1.0), contexts(1, 3)
    chosen = served.choose(SCREEN, 3, 2)
    reply = chosen.engine.answer(TopKRequest(hidden_states, 2))
    shadow.offer(served, chosen, hidden_states, reply)
    found = waiting(shadow)
    assert len(found) == 3
    for row, sample in enumerate(found):
        np.testing.assert_array_equal(sample.hidden_states, hidden_states[row : row + 1])
        np.testing.assert_array_equal(sample.answer.ids, reply.ids[row : row + 1])
        assert not np.shares_memory(sample.hidden_states, hidden_states)
        assert not np.shares_memory(sample.answer.ids, reply.ids)
    partial = reply.answer._replace(rows_missing=(RowRange(0, 1),))
    shadow.offer(served, chosen, hidden_states, reply._replace(answer=partial))
    assert not waiting(shadow)


def test_rows_over_a_full_queue_are_dropped_and_counted(served: Served) -> None:
    lost: list[tuple[str, str]] = []
    shadow = make_shadow(1.0, lost=lambda *what: lost.append(what))
    offered(shadow, served, QUEUE + 7, 1)
    assert len(waiting(shadow)) == QUEUE
    assert lost == [("demo", "queue_full")] * 7


@pytest.mark.parametrize(("share", "cpu"), [(0.0, 1.0), (1.0, 0.0)])
def test_a_share_of_0_turns_it_off(served: Served, share: float, cpu: float) -> None:
    shadow = make_shadow(share, cpu)
    offered(shadow, served, 100, 4)
    assert waiting(shadow) == []
    shadow.start()  # outside of a loop: there is no thread to start
    shadow.stop()


def run(loop: Loop, shadow: Shadow, then: Callable[[], object]) -> None:
    async def starting() -> None:
        shadow.start()

    loop.run(starting())
    try:
        then()
    finally:
        shadow.stop()


def test_rows_are_judged_in_a_thread_and_reported_on_the_loop(served: Served, loop: Loop) -> None:
    done, found = threading.Event(), []

    def judged(judgement: Judgement) -> None:
        found.append((judgement.hits, threading.current_thread(), asyncio.get_running_loop()))
        if len(found) == 6:
            done.set()

    shadow = make_shadow(1.0, judged=judged)
    offered(shadow, served, 2, 3)
    run(loop, shadow, lambda: done.wait(WAIT_S))
    assert [hits for hits, _, _ in found] == [{1: 1.0, 2: 2.0}] * 6
    assert {thread for _, thread, _ in found} == {loop._thread}


def test_the_budget_is_a_share_of_one_core(served: Served, loop: Loop) -> None:
    rests: list[float] = []

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rests.append(timeout or 0.0)
            return self.is_set()

    ticks = count(0.0, 2.0)
    shadow = make_shadow(1.0, 0.25, clock=lambda: next(ticks), stopping=Stopping())
    offered(shadow, served, 1, 3)
    shadow._queue.put(None)
    run(loop, shadow, lambda: shadow._thread.join(WAIT_S))  # type: ignore[union-attr]
    assert rests == [2.0 * 3] * 3


def test_a_row_that_cannot_be_judged_is_counted_and_the_next_one_is(
    served: Served, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    done, lost = threading.Event(), []
    shadow = make_shadow(1.0, judged=lambda _: done.set(), lost=lambda *what: lost.append(what))
    good = sampled(served, contexts(1, 1), 2)
    shadow._queue.put(good._replace(hidden_states=np.zeros((1, 3), np.float32)))
    shadow._queue.put(good)
    with caplog.at_level(logging.ERROR):
        run(loop, shadow, lambda: done.wait(WAIT_S))
    assert lost == [("demo", "failed")]
    assert "a row of demo was not judged" in caplog.text


def test_rows_of_a_gone_version_are_dropped(tmp_path: Path, loop: Loop) -> None:
    done, lost = threading.Event(), []
    served = open_served(tmp_path)

    def forgotten(*what: str) -> None:
        lost.append(what)
        done.set()

    shadow = make_shadow(1.0, lost=forgotten)
    shadow._queue.put(sampled(served, contexts(1, 1), 2))
    served.leases.end()
    run(loop, shadow, lambda: done.wait(WAIT_S))
    assert lost == [("demo", "unloaded")]


def feed(live: PrecisionMetrics, served: Served, domain: int, rows: int, k: int = 5) -> None:
    for row in contexts(domain, rows, seed=2):
        live.judged(judge(sampled(served, row[None], k)))


def watched(served: Served) -> tuple[PrecisionMetrics, Metrics]:
    metrics = Metrics()
    return PrecisionMetrics(metrics.registry, lambda: [Version("demo", 1, served)]), metrics


def test_what_is_named_counts_but_not_against_auto(tmp_path: Path) -> None:
    served = open_served(tmp_path)
    live, metrics = watched(served)
    served.choose(AUTO, 1, 5)
    for row in contexts(2, 300):
        live.judged(judge(sampled(served, row[None], 5, SCREEN)))
    assert samples(metrics, "logitsieve_shadow_rows_total") == {("screen", "demo"): 300}
    assert samples(metrics, "logitsieve_auto_missed_total") == {}
    assert served.choose(AUTO, 1, 5).engine.head == "screen"


def test_the_series_of_a_judged_row(tmp_path: Path) -> None:
    served = open_served(tmp_path)
    live, metrics = watched(served)
    feed(live, served, domain=1, rows=3, k=7)
    live.lost("demo", "queue_full")
    assert samples(metrics, "logitsieve_target_precision_ratio") == {
        (k[1:], "demo", "1"): precision for k, precision in TARGET_PRECISION.items()
    }
    by_k = samples(metrics, "logitsieve_shadow_possible_total")
    assert by_k == {("screen", "1", "demo"): 3, ("screen", "5", "demo"): 15}
    allowed = samples(metrics, "logitsieve_auto_allowed_total")
    np.testing.assert_allclose(allowed["1", "demo"], 3 * (1 - TARGET_PRECISION["p1"]))
    np.testing.assert_allclose(allowed["5", "demo"], 15 * (1 - TARGET_PRECISION["p5"]))
    assert samples(metrics, "logitsieve_shadow_lost_rows_total") == {("demo", "queue_full"): 1}


def test_of_two_ks_in_a_class_the_larger_counts() -> None:
    assert shares({1: 1, 3: 1, 4: 2, 5: 4}) == {1: 1.0, 5: 0.8}


def test_a_row_that_is_judged_after_its_loop_has_ended_is_left(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine so busy that a judgement takes longer than `stop` waits."""
    judging, ended, raised = threading.Event(), threading.Event(), list[Any]()

    def slow(row: AnsweredRow) -> Judgement:
        judging.set()
        assert ended.wait(WAIT_S)
        return judge(row)

    monkeypatch.setattr("logitsieve.server.precision.judge", slow)
    monkeypatch.setattr(threading, "excepthook", raised.append)
    shadow = Shadow(1.0, 1.0, judged=raised.append, lost=print, clock=lambda: 0.0)

    async def start() -> None:
        shadow.start()

    asyncio.run(start())
    row = sampled(served, contexts(2, 1), 5)
    reply = row.chosen.engine.answer(TopKRequest(row.hidden_states, 5))
    shadow.offer(served, row.chosen, row.hidden_states, reply)
    assert judging.wait(WAIT_S)
    ended.set()  # its loop, too
    shadow._queue.put(None)
    assert shadow._thread is not None
    shadow._thread.join(WAIT_S)
    assert not shadow._thread.is_alive()
    assert raised == []
