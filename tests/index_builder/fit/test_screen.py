import gc
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest, TargetNotReached
from logitsieve.evaluation.precision import lower_bound
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit.screen import (
    Search,
    checked_target,
    depths,
    least_rows,
    refuse_unprovable,
)
from logitsieve.index_builder.fitting import FitInputs
from logitsieve.index_builder.screen.cascade import ScreenCosts
from logitsieve.index_builder.screen.partition import Partition
from logitsieve.index_builder.screen.training import UNREACHED, FittedScreen
from tests.index_builder.clustered import escalated_hits, lowest, make_inputs
from tests.refusals import refused

CONFIG = BuildConfig(clusters_tried=(4, 12), rounds=1, steps=20, batch_rows=128)
REACHABLE = {"p1": 0.97, "p5": 0.95}
UNREACHABLE = {"p1": 1.0}
FALLBACK = 200.0


def costs(fallback: float) -> ScreenCosts:
    """Bytes of a softmax with one a row."""
    return ScreenCosts(fallback, 1.0, 1.0)


def no_time(screen: FittedScreen) -> float:
    """All are equally fast."""
    return 1.0


@pytest.fixture(scope="module")
def inputs() -> FitInputs:
    return make_inputs(rows=3000, heldout=1000, depth=10)[1]


def search(
    inputs: FitInputs,
    target: Mapping[str, float],
    best_effort: bool = False,
    fallback: float = FALLBACK,
) -> FittedScreen:
    inputs = replace(inputs, config=CONFIG, best_effort=best_effort)
    return Search(inputs, target, costs(fallback), no_time).run()


@pytest.mark.parametrize("fallback", [0.1, FALLBACK, 1e5])
def test_a_reachable_target_is_met_by_the_lower_bounds(inputs: FitInputs, fallback: float) -> None:
    screen = search(inputs, REACHABLE, fallback=fallback)
    found = lowest(escalated_hits(screen.partition, screen.plan), REACHABLE)
    assert all(found[name] >= value for name, value in REACHABLE.items())


def test_a_target_out_of_reach_names_the_nearest_point_or_returns_it(inputs: FitInputs) -> None:
    with pytest.raises(TargetNotReached) as caught:
        search(inputs, UNREACHABLE)
    assert caught.value.target == UNREACHABLE
    assert 0.9 < caught.value.best["p1"] < 1
    assert caught.value.best["candidates"] > 5
    screen = search(inputs, UNREACHABLE, best_effort=True)
    assert screen.plan.budget is None
    assert screen.plan.cost > UNREACHED
    assert screen.knobs == {"probes": 1, "escalate": -1.0}
    assert screen.arrays["ids"].size


def test_a_target_that_few_contexts_cannot_show_is_not_tried(inputs: FitInputs) -> None:
    trained: list[int] = []

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "train":
            trained.append(total)

    watched = replace(inputs, config=CONFIG, progress=progress)
    with pytest.raises(TargetNotReached) as caught:
        Search(watched, UNREACHABLE, costs(FALLBACK), no_time).run()
    assert trained == [1]  # of 2 x 4 starts
    provable = caught.value.best["provable"]
    assert provable == lower_bound(np.ones(inputs.heldout.rows)) < 1
    assert f"provable={provable:.5g}" in str(caught.value)


def test_the_search_weighs_targets_and_fallbacks(inputs: FitInputs) -> None:
    easy, hard = (search(inputs, {"p5": value}).plan.cost for value in (0.8, 0.97))
    assert easy < hard
    # One that costs more than all of V answers none: the lists hold what the target needs.
    shares = [
        search(inputs, REACHABLE, fallback=cost).plan.escalated for cost in (0.1, FALLBACK, 1e5)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.1
    assert shares[-1] == 0
    screen = search(inputs, REACHABLE, fallback=0.1)
    assert screen.knobs == {"probes": screen.plan.probes, "escalate": screen.plan.escalate}
    assert -1 < screen.plan.escalate < 1
    assert screen.summary.keys() >= {"clusters", "labels", "candidates", "probes", "escalate"}
    cosines = screen.partition.heldout_cosines
    assert screen.summary["escalated"] == (cosines < screen.plan.escalate).mean()


def test_partitions_that_were_judged_are_not_kept(inputs: FitInputs) -> None:
    def alive() -> int:
        return sum(type(thing) is Partition for thing in gc.get_objects())

    before, found = alive(), []

    def progress(stage: str, done: int, total: int) -> None:
        found.append(alive() - before)

    watched = replace(inputs, config=CONFIG, progress=progress)
    Search(watched, REACHABLE, costs(FALLBACK), no_time).run()
    assert set(found[:2]) == {1}


@pytest.mark.parametrize(
    "wrong",
    [{}, {"p2": 0.9}, {"p1": 0}, {"p1": 1.1}, {"p1": True}, {"p1": "1"}, {"p1": float("nan")}],
)
def test_targets_that_make_no_sense(wrong: dict[str, float]) -> None:
    with refused("target_precision"):
        checked_target(wrong, 1000)


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("wanted", [1e-3, 0.5, 0.9, 0.95, 0.98, 0.998, 0.9999])
def test_the_least_contexts_show_a_target_and_one_fewer_do_not(wanted: float, unseen: bool) -> None:
    rows = least_rows(wanted, unseen)
    refuse_unprovable({"p1": wanted, "p5": wanted / 2}, rows, unseen)
    if rows > 1:
        with pytest.raises(InvalidRequest, match=f"allowed: {rows:,} or more"):
            refuse_unprovable({"p1": wanted / 2, "p5": wanted}, rows - 1, unseen)


def test_targets_beyond_what_there_is() -> None:
    with pytest.raises(InvalidRequest, match="less than 1"):
        refuse_unprovable({"p1": 1.0}, 10**6, unseen=True)
    with pytest.raises(InvalidRequest, match="beyond V = 9"):
        checked_target({"p10": 0.5}, 9)
    assert checked_target({"p5": 1}, 9) == {"p5": 1.0}
    assert depths({"p1": 0.9}, 5, 1000) == (5, 7, 10, 20)
    assert depths({"p1": 0.9, "p10": 0.9}, 5, 1000) == (10, 15, 20, 40)
    assert depths({"p1": 0.9}, 5, 3) == (3,)
    assert depths({"p1": 0.9}, 64, 1000) == (64, 96, 128, 256)


def test_without_unseen_text_each_miss_counts_twice(inputs: FitInputs) -> None:
    same = replace(inputs, unseen=False)
    strict = search(same, REACHABLE, fallback=0.1)
    found = lowest(escalated_hits(strict.partition, strict.plan), REACHABLE)
    assert all(1 - 2 * (1 - found[name]) >= value for name, value in REACHABLE.items())
    assert strict.plan.escalated > search(inputs, REACHABLE, fallback=0.1).plan.escalated
    with pytest.raises(TargetNotReached) as caught:
        search(same, UNREACHABLE)
    rows = inputs.heldout.rows
    assert caught.value.best["provable"] == 1 - 2 * (1 - lower_bound(np.ones(rows)))
