from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logitsieve.evaluation.precision import lower_bound
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fitting import FitInputs, same_text_bound
from logitsieve.index_builder.screen.cascade import (
    PRECISE,
    PrecisionGoal,
    ScreenCosts,
    least_escalation,
)
from logitsieve.index_builder.screen.partition import Partition
from logitsieve.index_builder.screen.training import UNREACHED, plain_centroids
from tests.index_builder.clustered import escalated_hits, lowest, make_inputs
from tests.synthetic import make_head

SOFTMAX, MATERIAL = make_inputs(rows=3000, heldout=1000, depth=10)
REACHABLE = {"p1": 0.97, "p5": 0.95}


def make_partition(inputs: FitInputs = MATERIAL, clusters: int = 12, depth: int = 5) -> Partition:
    return Partition(inputs, plain_centroids(inputs, clusters), depth)


def make_target(precision: Mapping[str, float], fallback: float = 1e5) -> PrecisionGoal:
    return PrecisionGoal(precision, ScreenCosts(fallback, 1.0, 1.0))


def random_hits(rows: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Hits that become likelier with the cosine."""
    random = np.random.default_rng(0)
    cosines = random.random(rows)
    return random.random((rows, 10)) < 0.9 + 0.1 * cosines[:, None], cosines


def needed(*asked: Any, **more: Any) -> float:
    """A threshold that there is."""
    found = least_escalation(*asked, **more)
    assert found is not None
    return found


def test_the_threshold_is_the_least_that_meets_all_precisions() -> None:
    hits, cosines = random_hits()
    escalate = needed(hits, cosines, {"p5": 0.98})
    shares = hits[:, :5].mean(axis=1)
    assert lower_bound(np.where(cosines < escalate, 1.0, shares)) >= 0.98
    one_less = np.sort(cosines)[(cosines < escalate).sum() - 1]
    assert lower_bound(np.where(cosines < one_less, 1.0, shares)) < 0.98
    assert least_escalation(hits, cosines, {"p5": 0.8}) == -1.0
    both, one, other = (
        needed(hits, cosines, target)
        for target in ({"p1": 0.97, "p5": 0.98}, {"p1": 0.97}, {"p5": 0.98})
    )
    assert both == max(one, other)
    assert least_escalation(hits, cosines, {"p1": 1.0}) is None
    assert least_escalation(np.zeros((9, 1), bool), np.ones(9), {"p1": 0.5}) is None
    coarse = np.round(cosines, 1)
    escalate = needed(hits, coarse, {"p5": 0.98})
    assert lower_bound(np.where(coarse < escalate, 1.0, hits[:, :5].mean(axis=1))) >= 0.98


def test_a_threshold_counts_misses_of_the_fallback_and_the_rows_that_may_be_escalated() -> None:
    """Right for all rows it is none; wrong for all, no threshold helps."""
    hits, cosines = random_hits()
    escalate = needed(hits, cosines, {"p5": 0.98})
    assert escalate == needed(hits, cosines, {"p5": 0.98}, rest_HK=np.ones_like(hits))
    some = np.random.default_rng(1).random(hits.shape) < 0.99
    higher = needed(hits, cosines, {"p5": 0.98}, rest_HK=some)
    assert higher > escalate
    shares = np.where(cosines < higher, some[:, :5].mean(axis=1), hits[:, :5].mean(axis=1))
    assert lower_bound(shares) >= 0.98
    assert least_escalation(hits, cosines, {"p5": 0.98}, rest_HK=np.zeros_like(hits)) is None
    below = int((cosines < escalate).sum())
    assert below > 1
    assert least_escalation(hits, cosines, {"p5": 0.98}, most=below) == escalate
    assert least_escalation(hits, cosines, {"p5": 0.98}, most=below - 1) is None
    assert least_escalation(hits, cosines, {"p5": 0.8}, most=0) == -1.0


@pytest.mark.parametrize("clusters", [3, 5])
def test_the_most_rows_that_cost_less_than_a_limit(clusters: int) -> None:
    random = np.random.default_rng(1)
    sizes, order = random.integers(5, 60, 200), random.permutation(200)
    costs = ScreenCosts(25.0, 1.0, 0.6)
    far = [np.isin(np.arange(200), order[:count]) for count in range(201)]
    read = [costs.a_row(clusters, sizes, each) for each in far]
    for limit in (0.0, 15.0, 20.0, 24.0, 1e3):
        cheaper = [count for count, cost in enumerate(read) if cost < limit]
        assert costs.most_escalated(clusters, sizes, order, limit) == max(cheaper, default=-1)
    assert costs.most_escalated(clusters, sizes, order, np.inf) == 200


def test_a_plan_is_the_cheapest_of_all_that_meet_the_target() -> None:
    """No plan that is passed over for its cost is cheaper."""
    partition, goal = make_partition(), make_target(REACHABLE, fallback=20.0)
    plan = goal.plan(partition)
    most = partition.knapsack.everything
    for probes in (1, 2, 3):
        for budget in [most * 0.8**step for step in range(12)]:
            each = goal._plan(partition, probes, budget, np.inf)
            assert each is None or each.cost >= plan.cost


def test_the_cost_of_a_cascade() -> None:
    costs = ScreenCosts(100.0, 1.5, 0.5)
    escalated = np.array([True, False, False, False])
    assert costs.a_row(2, np.array([80, 4, 4, 8]), escalated) == 3 + 0.5 * 4 + 25


def test_a_plan_meets_the_target_or_escalates_nothing() -> None:
    partition = make_partition()
    plan = make_target(REACHABLE, fallback=1.0).plan(partition)
    assert 0 < plan.escalated < 1
    found = lowest(escalated_hits(partition, plan), REACHABLE)
    assert all(found[name] >= value for name, value in REACHABLE.items())
    partition, goal = make_partition(), make_target(REACHABLE)
    plan = goal.plan(partition)
    assert plan.budget is not None
    assert plan.escalate == -1
    select = partition.knapsack.select
    assert goal.shortfall(partition, select(plan.budget), plan.probes) <= 0
    assert goal.shortfall(partition, select(plan.budget - 2 * PRECISE), plan.probes) > 0
    plan = make_target({"p1": 1.0}).plan(make_partition())
    assert plan.budget is None
    assert plan.cost > UNREACHED
    # Training leaves clusters empty, and those are gone.
    target = make_target(REACHABLE)
    small = make_partition(clusters=2)
    assert 1 <= target.plan(small).probes <= small.clusters


def test_a_guard_escalates_at_least_its_share() -> None:
    centroids = plain_centroids(MATERIAL, 12)
    partition = Partition(replace(MATERIAL, config=BuildConfig(guard=0.3)), centroids, 5)
    for target in ({"p1": 0.5}, {"p1": 1.0}):
        plan = make_target(target).plan(partition)
        assert plan.escalate == partition.guarded
        assert plan.escalated == pytest.approx(0.3, abs=0.05)
    harder = make_target({"p5": 0.99}, fallback=1.0).plan(partition)
    assert harder.escalated > 0.4


@pytest.mark.parametrize("probes", [1, 2, 3])
def test_hits_sizes_and_escalated_rows_are_those_of_the_served_screen(probes: int) -> None:
    partition = make_partition()
    keep = partition.knapsack.select(15)
    escalate = float(np.quantile(partition.heldout_cosines, 0.2))
    knobs = {"probes": probes, "escalate": escalate + 1e-6}
    head = make_head("screen", SOFTMAX, arrays=partition.arrays(keep), **knobs)
    hidden_states = MATERIAL.heldout.take(np.arange(MATERIAL.heldout.rows))
    top = head.topk(hidden_states, 5)
    np.testing.assert_array_equal(top.proven, partition.heldout_cosines < escalate + 1e-6)
    labels, own = MATERIAL.heldout_labels[:, :5], ~top.proven
    right = (labels[:, :, None] == top.ids[:, None]).any(axis=2)
    np.testing.assert_array_equal(partition.heldout_hits(keep, probes)[own, :5], right[own])
    sizes = partition.heldout_sizes(keep, probes)
    np.testing.assert_array_equal(sizes[own], top.scanned[own])


def test_a_context_of_zeros_is_not_escalated() -> None:
    hidden_states = MATERIAL.heldout.take(np.arange(50))
    hidden_states[7] = 0
    inputs = replace(
        MATERIAL, heldout=Contexts([hidden_states]), heldout_labels=MATERIAL.heldout_labels[:50]
    )
    assert make_partition(inputs).heldout_cosines[7] == 1


def test_the_bound_of_text_that_was_trained_on_counts_misses_twice() -> None:
    share_H = np.ones(1000)
    share_H[::100] = 0.5
    assert same_text_bound(share_H) == pytest.approx(2 * lower_bound(share_H) - 1)
    assert same_text_bound(np.zeros(1000)) == 0
