from __future__ import annotations

import gc
from collections.abc import Mapping

import numpy as np
import pytest

from logitsieve.evaluation.bounds import lower_bound
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit_screen import Screen, plain_centroids, spend
from logitsieve.index_builder.material import Material
from logitsieve.index_builder.partition import Partition
from logitsieve.index_builder.target import (
    PRECISE,
    UNREACHED,
    Target,
    checked_target,
    depths,
    search_screen,
)
from logitsieve.types.errors import InvalidRequest, TargetNotReached
from tests.index_builder.clustered import make_material

CONFIG = BuildConfig(clusters_tried=(4, 12), rounds=1, steps=20, batch_rows=128)
REACHABLE = {"p1": 0.97, "p5": 0.95}
UNREACHABLE = {"p1": 1.0}


@pytest.fixture(scope="module")
def material() -> Material:
    return make_material(rows=3000, heldout=1000, depth=10)[1]


def scanned(arrays: Mapping[str, np.ndarray]) -> float:
    """A timer that needs no clock: rows of W and centroids read by an average cluster."""
    return float(len(arrays["centroids"]) + np.diff(arrays["offsets"]).mean())


def search(material: Material, target: Mapping[str, float], best_effort: bool = False) -> Screen:
    return search_screen(
        material, CONFIG, lambda *step: None, target=target, timer=scanned, best_effort=best_effort
    )


def bounds(screen: Screen, target: Mapping[str, float]) -> dict[str, float]:
    partition = screen.partition
    keep = partition.knapsack.select(spend(partition, screen.plan.budget))
    return Target(target).bounds(partition, keep)


def test_a_reachable_target_is_met_by_the_lower_bounds(material: Material) -> None:
    found = bounds(search(material, REACHABLE), REACHABLE)
    assert all(found[name] >= value for name, value in REACHABLE.items())


def test_the_bounds_are_those_of_the_hits(material: Material) -> None:
    screen = search(material, REACHABLE)
    keep = screen.partition.knapsack.select(spend(screen.partition, screen.plan.budget))
    hits = screen.partition.heldout_hits(keep)
    expected = lower_bound(hits[:, :5].mean(axis=1))
    assert bounds(screen, REACHABLE)["p5"] == expected


def test_the_budget_is_the_least_that_meets_the_target(material: Material) -> None:
    goal = Target(REACHABLE)
    partition = Partition(material, plain_centroids(material, CONFIG, 12), 5, 3e-4)
    plan = goal.plan(partition)
    assert plan.budget is not None
    assert goal.shortfall(partition, partition.knapsack.select(plan.budget)) <= 0
    less = partition.knapsack.select(plan.budget - 2 * PRECISE)
    assert goal.shortfall(partition, less) > 0


def test_an_unreachable_target_names_the_nearest_point(material: Material) -> None:
    with pytest.raises(TargetNotReached) as caught:
        search(material, UNREACHABLE)
    assert caught.value.target == UNREACHABLE
    assert 0.9 < caught.value.best["p1"] < 1
    assert caught.value.best["candidates"] > 5


def test_best_effort_returns_the_nearest_point(material: Material) -> None:
    screen = search(material, UNREACHABLE, best_effort=True)
    assert screen.plan.budget is None
    assert screen.plan.badness > UNREACHED
    assert screen.arrays["ids"].size


def test_a_harder_target_costs_more(material: Material) -> None:
    easy, hard = ({"p5": value} for value in (0.8, 0.97))
    assert scanned(search(material, easy).arrays) < scanned(search(material, hard).arrays)


def test_partitions_that_were_timed_are_not_kept(material: Material) -> None:
    def alive() -> int:
        return sum(type(thing) is Partition for thing in gc.get_objects())

    before, found = alive(), []

    def timer(arrays: Mapping[str, np.ndarray]) -> float:
        found.append(alive() - before)
        return scanned(arrays)

    search_screen(
        material, CONFIG, lambda *step: None, target=REACHABLE, timer=timer, best_effort=False
    )
    assert found[:6] == [1] * 6


def test_depths() -> None:
    config = BuildConfig(labels=5)
    assert depths({"p1": 0.9}, config, 1000) == (5, 7, 10)
    assert depths({"p1": 0.9, "p10": 0.9}, config, 1000) == (10, 15, 20)
    assert depths({"p1": 0.9}, config, 3) == (3,)
    assert depths({"p1": 0.9}, BuildConfig(labels=64), 1000) == (64, 96, 128)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"p2": 0.9}, {"p1": 0}, {"p1": 1.1}, {"p1": True}, {"p1": "1"}, {"p1": float("nan")}],
)
def test_targets_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked_target(wrong, 1000)
    assert caught.value.field == "target_precision"


def test_no_target_beyond_the_vocabulary() -> None:
    with pytest.raises(InvalidRequest, match="beyond V = 9"):
        checked_target({"p10": 0.5}, 9)
    assert checked_target({"p5": 1}, 9) == {"p5": 1.0}
