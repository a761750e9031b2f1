"""The model and the simulation of calls over shards, and the judge of lost ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.scale.lost import K, best_ids
from benchmarks.scale.model import Costs, costs_of
from benchmarks.scale.simulation import Cluster, Simulation, simulated, windows
from tests.synthetic import make_hidden, make_softmax

QUIET = Cluster(
    shards=1,
    replicas=1,
    ingress_cores=4,
    send_s=0.0,
    service_s=0.01,
    network_s=0.001,
    spread=0.0,
    pauses_per_s=1e-9,
)
COSTS = Costs(
    client=2000.0,
    own=500.0,
    floors=100.0,
    send=200.0,
    answer=300.0,
    wire_bytes=2000.0,
    rows=(10_000, 1_000_000),
    compute=(20.0, 2000.0),
    row_bytes=1000.0,
    bounds_bytes=200.0,
    replicated_bytes=1e6,
    replicated_rows=50_000,
)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_queue_waits_as_theory_says(load: float) -> None:
    """Pollaczek and Khinchine: random arrivals, equal service times, one server."""
    seconds = Simulation(QUIET, 20_000, load / QUIET.service_s, seed=3).seconds
    waiting = load * QUIET.service_s / (2 * (1 - load))
    expected = QUIET.network_s + QUIET.service_s + waiting
    assert seconds.mean() == pytest.approx(expected, rel=0.05)
    assert seconds.min() == pytest.approx(QUIET.network_s + QUIET.service_s)


def test_a_call_takes_as_long_as_its_slowest_shard() -> None:
    varied = replace(QUIET, spread=0.5)
    means = [
        Simulation(replace(varied, shards=shards), 500, 1.0).seconds.mean() for shards in (1, 8)
    ]
    random = np.random.default_rng(0).standard_normal((100_000, 8))
    services = QUIET.service_s * np.exp(0.5 * random - 0.125)
    assert means[0] == pytest.approx(QUIET.network_s + services.mean(), rel=0.1)
    assert means[1] == pytest.approx(QUIET.network_s + services.max(axis=1).mean(), rel=0.1)


def test_a_pause_delays_those_behind_it() -> None:
    paused = Simulation(replace(QUIET, pauses_per_s=1.0, pause_s=0.2), 2000, 20.0)
    assert np.percentile(paused.seconds, 99) > 0.1
    assert paused.whole.all()


def test_a_lost_node_without_another_replica_is_answered_without() -> None:
    lost = Simulation(replace(QUIET, shards=3), 1000, 20.0, (10.0, 20.0))
    inside = (lost.began > 10.1) & (lost.began < 19.9)
    np.testing.assert_array_equal(lost.whole[(lost.began < 9) | (lost.began > 20)], True)
    assert not lost.whole[inside].any()
    assert lost.seconds[inside].max() > QUIET.patience_s  # of those that waited first
    assert np.median(lost.seconds[inside]) < 0.1
    [quiet] = [each for each in windows(lost) if each["second"] == 15.0]
    assert quiet["whole"] == 0


def test_another_replica_answers_for_a_lost_one() -> None:
    lost = Simulation(replace(QUIET, shards=3, replicas=2), 1000, 20.0, (10.0, 20.0))
    assert lost.whole.all()
    inside = (lost.began > 10.1) & (lost.began < 19.9)
    late = lost.seconds[inside] > QUIET.service_s + QUIET.again_s
    assert 0.2 < late.mean() < 0.9


def test_latencies_of_the_model() -> None:
    assert COSTS.computed(100_000, 1) == pytest.approx(200)
    assert COSTS.computed(10_000_000, 10) == pytest.approx(2_000)
    one, four = COSTS.latency(1e6, 1), COSTS.latency(1e6, 4)
    assert one == pytest.approx(2000 + 100 + 2000 + 100 + 1.6)
    assert four == pytest.approx(2000 + 100 + 600 + 500 + 100 + 6.4)
    assert COSTS.ingress_per_s(5) == pytest.approx(1e6 / 1600)
    assert COSTS.replica_per_s(1e6, 1) == pytest.approx(1e6 / 2300)


def test_costs_follow_from_what_was_measured() -> None:
    shards = (1, 2, 4, 8)
    heads = {"certified": 20.0, "replicated": 30.0}
    times = {name: {"median": us} for name, us in heads.items()}
    called = {
        str(s): {
            "replicated": {
                "p50": 2050.0,
                "ingress_cpu_us": 530 + 200 * s,
                "replica_cpu_us": 300 + 20 / s,
            }
        }
        for s in shards
    }
    results: dict[str, Any] = {
        "times": {"10000": times},
        "called": {"10000": called},
        "sizes": {
            "10000": {
                "softmax": 8e6,
                "sketch": 2e6,
                "bounds": 2.85e6,
                "replicated": 5e5,
                "replicated_rows": 500,
            }
        },
        "wire": {"1": {"topk": {"asked": 1500.0, "answered": 500.0}}},
    }
    costs = costs_of(results)
    assert (costs.client, costs.wire_bytes, costs.floors) == (2000, 2000, 30)
    assert (costs.row_bytes, costs.bounds_bytes, costs.replicated_bytes) == (1000, 300, 5e5)
    assert [costs.own, costs.send, costs.answer] == pytest.approx([500, 200, 300])


def test_each_number_of_shards_is_simulated_with_one_replica_and_with_two() -> None:
    found = simulated(COSTS, (1, 8), 1000, (1.0, 3.0))
    assert {(one["shards"], one["replicas"]) for one in found["tail"]} == {
        (s, r) for s in (1, 8) for r in (1, 2)
    }
    assert all(one["p50"] <= one["p99"] <= one["p99.9"] for one in found["tail"])
    assert min(second["whole"] for second in found["lost"]["1"]) < 1
    assert min(second["whole"] for second in found["lost"]["2"]) == 1


def test_the_judge_finds_the_best_of_float64() -> None:
    softmax, hidden = make_softmax(40_000), make_hidden(20)
    logits = hidden.astype(np.float64) @ softmax.weight.T.astype(np.float64) + softmax.bias
    wanted = np.argsort(-logits, axis=1, kind="stable")[:, :K]
    np.testing.assert_array_equal(best_ids(softmax, hidden), wanted)
