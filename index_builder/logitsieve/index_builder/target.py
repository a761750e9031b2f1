"""Searching for the least measured time at which a screen meets a target precision.

For one partition the greedy order fixes the lists at every budget, so the least budget that meets
the target is found by bisection on held-out contexts, without any further fit.

Shape letters: H held-out contexts, P observed (cluster, label) pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from logitsieve.evaluation.bounds import lower_bound
from logitsieve.index_builder.config import BuildConfig, Progress, no_progress
from logitsieve.index_builder.fit_screen import (
    Plan,
    Screen,
    plain_centroids,
    spend,
    train_screen,
)
from logitsieve.index_builder.material import Material
from logitsieve.index_builder.partition import Partition
from logitsieve.types.errors import InvalidRequest, TargetNotReached
from logitsieve.types.results import Bool, Float32

TARGETS = {"p1": 1, "p5": 5, "p10": 10}
DEEPER = (1.0, 1.5, 2.0)  # lists that hold more labels than are asked for generalise better
TRAINED = 4  # partitions trained at least, the fastest of the plain ones
TIMINGS = 5  # times each finalist is timed, in turn; the least counts, for load only ever adds
PRECISE = 0.25  # candidates a row to which a budget is found
UNREACHED = 1e9  # badness of a partition that misses the target with every label kept

Timer = Callable[[Mapping[str, np.ndarray]], float]
"""Microseconds a row of a head over these arrays, measured."""


def checked_target(target: Mapping[str, float], vocab_size: int) -> dict[str, float]:
    """A copy of `target`; InvalidRequest unless it maps p1, p5 or p10 to numbers in (0, 1]."""
    allowed = f"{', '.join(TARGETS)}, each in (0, 1], none beyond V = {vocab_size}"
    if not target:
        raise InvalidRequest("target_precision", "nothing", allowed)
    for name, value in target.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name not in TARGETS or TARGETS[name] > vocab_size or not (number and 0 < value <= 1):
            raise InvalidRequest("target_precision", f"{name}={value}", allowed)
    return {name: float(value) for name, value in target.items()}


@dataclass(frozen=True)
class Target:
    """A goal for training: the least budget whose lower 95 % bounds meet `precision`."""

    precision: Mapping[str, float]

    def plan(self, partition: Partition) -> Plan:
        """The least budget that meets the target, or no limit where even that misses it."""
        high = partition.knapsack.everything
        missing = self.shortfall(partition, partition.knapsack.select(high))
        if missing > 0:
            return Plan(None, UNREACHED + missing)
        low = 0.0
        while high - low > PRECISE:
            middle = (low + high) / 2
            if self.shortfall(partition, partition.knapsack.select(middle)) > 0:
                low = middle
            else:
                high = middle
        return Plan(high, partition.candidates(partition.knapsack.select(high)))

    def shortfall(self, partition: Partition, keep_P: Bool) -> float:
        """How far the worst of the lower bounds is below its target; 0 or less if none is."""
        bounds = self.bounds(partition, keep_P)
        return max(self.precision[name] - bounds[name] for name in self.precision)

    def bounds(self, partition: Partition, keep_P: Bool) -> dict[str, float]:
        """The lower 95 % bounds of the precisions asked for, over the held-out contexts."""
        hits_HK = partition.heldout_hits(keep_P)
        return {
            name: lower_bound(hits_HK[:, : TARGETS[name]].mean(axis=1)) for name in self.precision
        }


def depths(target: Mapping[str, float], config: BuildConfig, vocab_size: int) -> tuple[int, ...]:
    """Labels a context that the search counts: what is asked for, and deeper."""
    asked = max(config.labels, *(TARGETS[name] for name in target))
    return tuple(sorted({min(int(asked * factor), vocab_size) for factor in DEEPER}))


def search_screen(
    material: Material,
    config: BuildConfig,
    progress: Progress,
    *,
    target: Mapping[str, float],
    timer: Timer,
    best_effort: bool,
) -> Screen:
    """The fastest screen found that meets `target`, over clusters, labels and budget.

    Plain partitions are timed for all clusters and depths. The fastest are trained and timed again,
    and the slower ones too while none has reached the target.
    TargetNotReached with the nearest point, unless `best_effort`, which returns that.
    """
    goal = Target(target)
    reached: list[Screen] = []
    nearest: Screen | None = None
    starts = _fastest_starts(material, goal, config, timer, progress)
    for number, (centroids_CD, depth) in enumerate(starts, start=1):
        plain = Partition(material, centroids_CD, depth, config.waste_weight)
        screen = train_screen(material, plain, goal, config, no_progress)
        if screen.plan.badness < UNREACHED:
            reached.append(screen)
        if nearest is None or screen.plan.badness < nearest.plan.badness:
            nearest = screen
        progress("train", number, max(number, min(TRAINED, len(starts))))
        if reached and number >= TRAINED:
            break
    if reached:
        return _fastest(reached, timer)
    assert nearest is not None
    if best_effort:
        return nearest
    keep_P = nearest.partition.knapsack.select(spend(nearest.partition, nearest.plan.budget))
    bounds = goal.bounds(nearest.partition, keep_P)
    raise TargetNotReached(target, {**bounds, **nearest.summary})


def _fastest_starts(
    material: Material, goal: Target, config: BuildConfig, timer: Timer, progress: Progress
) -> list[tuple[Float32, int]]:
    """Centroids and depth of plain k-means at all numbers of clusters, the fastest first.

    One that misses the goal with every label kept is timed so: training may make up for it.
    The partitions are not kept, for there are many and few are trained.
    """
    ranked: list[tuple[float, int, Float32, int]] = []
    for number, clusters in enumerate(config.clusters_tried, start=1):
        centroids_CD = plain_centroids(material, config, clusters)
        for depth in depths(goal.precision, config, material.vocab_size):
            partition = Partition(material, centroids_CD, depth, config.waste_weight)
            keep_P = partition.knapsack.select(spend(partition, goal.plan(partition).budget))
            us = timer(partition.arrays(keep_P))
            ranked.append((us, len(ranked), centroids_CD, depth))
        progress("search", number, len(config.clusters_tried))
    return [(start, depth) for _, _, start, depth in sorted(ranked, key=lambda entry: entry[:2])]


def _fastest(screens: list[Screen], timer: Timer) -> Screen:
    """Timed in turn, so that a busy moment of the machine meets all of them."""
    least = [float("inf")] * len(screens)
    for _ in range(TIMINGS):
        for number, screen in enumerate(screens):
            least[number] = min(least[number], timer(screen.arrays))
    return screens[least.index(min(least))]
