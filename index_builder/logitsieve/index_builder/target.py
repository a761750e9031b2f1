"""Searching for the least measured time at which a screen meets a target precision.

For one partition the greedy order fixes the lists at every budget, and what each list holds says
which rows to escalate, so the best operating point needs no further fit: see cascade.py.

Shape letters: D hidden size, C clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from logitsieve.api.errors import InvalidRequest, TargetNotReached
from logitsieve.api.results import Float32
from logitsieve.index_builder.cascade import TARGETS, UNREACHED, Costs, Target, Timer, measure
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit_inputs import FitInputs
from logitsieve.index_builder.fit_screen import Screen, plain_centroids, spend, train_screen
from logitsieve.index_builder.partition import Partition
from logitsieve.utils.options import Progress, no_progress

DEEPER = (1.0, 1.5, 2.0, 4.0)  # lists of more labels than are asked for generalise better
TRAINED = 4  # partitions trained at least, the fastest of the plain ones
TIMINGS = 5  # times each finalist is timed, in turn; the least counts, for load only ever adds


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


class Start(NamedTuple):
    """Where training may begin: plain k-means [C, D], and what its screens cost."""

    centroids: Float32
    depth: int
    costs: Costs


def depths(target: Mapping[str, float], config: BuildConfig, vocab_size: int) -> tuple[int, ...]:
    """Labels a context that the search counts: what is asked for, and deeper."""
    asked = max(config.labels, *(TARGETS[name] for name in target))
    return tuple(sorted({min(int(asked * factor), vocab_size) for factor in DEEPER}))


def search_screen(
    material: FitInputs,
    config: BuildConfig,
    progress: Progress,
    *,
    target: Mapping[str, float],
    timer: Timer,
    fallback_us: float,
    best_effort: bool,
) -> Screen:
    """The fastest screen found that meets `target`, over clusters, labels, budget and knobs.

    Plain partitions are judged for all clusters and depths. The fastest are trained and timed,
    and the slower ones too while none has reached the target. `fallback_us`, microseconds a row, is
    what a row costs that the screen leaves to its fallback, whose answers are right.
    TargetNotReached with the nearest point where only that answering all rows would meet the
    target, unless `best_effort`, which returns the nearest.
    """
    reached: list[Screen] = []
    nearest: tuple[Screen, Target] | None = None
    starts = _fastest_starts(material, target, config, timer, fallback_us, progress)
    for number, start in enumerate(starts, start=1):
        goal = Target(target, start.costs)
        plain = Partition(
            material, start.centroids, start.depth, config.waste_weight, config.guard or 0.0
        )
        screen = train_screen(material, plain, goal, config, no_progress)
        if screen.plan.badness < UNREACHED:
            reached.append(screen)
        if nearest is None or screen.plan.badness < nearest[0].plan.badness:
            nearest = screen, goal
        progress("train", number, max(number, min(TRAINED, len(starts))))
        if reached and number >= TRAINED:
            break
    if reached:
        return _fastest(reached, timer)
    assert nearest is not None
    screen, goal = nearest
    if best_effort:
        return screen
    keep_P = screen.partition.knapsack.select(spend(screen.partition, screen.plan.budget))
    raise TargetNotReached(target, {**goal.bounds(screen.partition, keep_P), **screen.summary})


def _fastest_starts(
    material: FitInputs,
    target: Mapping[str, float],
    config: BuildConfig,
    timer: Timer,
    fallback_us: float,
    progress: Progress,
) -> list[Start]:
    """Plain k-means at all numbers of clusters and depths, the fastest first.

    One that misses the target comes last: training may make up for it.
    The partitions are not kept, for there are many and few are trained.
    """
    ranked: list[tuple[float, int, Start]] = []
    for number, clusters in enumerate(config.clusters_tried, start=1):
        centroids_CD = plain_centroids(material, config, clusters)
        costs: Costs | None = None
        for depth in reversed(depths(target, config, material.vocab_size)):
            partition = Partition(
                material, centroids_CD, depth, config.waste_weight, config.guard or 0.0
            )
            costs = costs or measure(partition, timer, fallback_us)
            badness = Target(target, costs).plan(partition).badness
            ranked.append((badness, len(ranked), Start(centroids_CD, depth, costs)))
        progress("search", number, len(config.clusters_tried))
    return [start for _, _, start in sorted(ranked, key=lambda entry: entry[:2])]


def _fastest(screens: list[Screen], timer: Timer) -> Screen:
    """Timed in turn, so that a busy moment of the machine meets all of them."""
    least = [float("inf")] * len(screens)
    for _ in range(TIMINGS):
        for number, screen in enumerate(screens):
            least[number] = min(least[number], timer(screen.arrays, screen.knobs))
    return screens[least.index(min(least))]
