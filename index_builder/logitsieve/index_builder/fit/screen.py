"""Fits `screen`, with a given budget or by a search for a target precision.

The knapsack's greedy order fixes a partition's lists at every budget, so that all of its operating
points need only one fit.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from logitsieve.api.errors import InvalidRequest, TargetNotReached
from logitsieve.api.results import Float32
from logitsieve.evaluation.precision import Z95
from logitsieve.heads import Head
from logitsieve.index_builder.contexts import HELD_OUT
from logitsieve.index_builder.fitting import (
    FULL,
    MORE_MISSES,
    SCATTERED,
    BuildInputs,
    FitInputs,
    FitResult,
    bound_of,
    bytes_read,
    cheapest,
    heads_of,
)
from logitsieve.index_builder.screen.cascade import (
    BYTES_A_TOKEN,
    EQUAL,
    TARGETS,
    PrecisionGoal,
    ScreenCosts,
)
from logitsieve.index_builder.screen.outside import with_outside
from logitsieve.index_builder.screen.partition import Partition
from logitsieve.index_builder.screen.training import (
    FittedScreen,
    plain_centroids,
    train_fixed,
    train_screen,
)

DEEPER = (1.0, 1.5, 2.0, 4.0)  # with more labels than the target counts, lists generalise better
TRAINED = 4
PROMISED = 0.01


def fit_screen(inputs: FitInputs, costs: ScreenCosts | None = None) -> FitResult:
    trial, softmax = inputs.trial, inputs.softmax

    def screen(result: FitResult) -> Head:
        fitted = {**inputs.fitted, "screen": result}
        return heads_of(softmax, fitted, fallback=inputs.fallback)["screen"]

    if (target := inputs.target) is None:
        result = train_fixed(inputs).result()
    else:
        if inputs.config.guard is None:
            inputs = replace(inputs, config=replace(inputs.config, guard=PROMISED))

        def us(fitted: FittedScreen) -> float:
            return trial.us(screen(fitted.result()))

        result = Search(inputs, target, costs or costs_of(inputs), us).run().result()
    return replace(result, arrays=with_outside(inputs, result.arrays))


def costs_of(inputs: FitInputs) -> ScreenCosts:
    """Return costs in bytes; a slow fallback costs what `full` would read in its time."""
    softmax, name = inputs.softmax, inputs.fallback
    fallback = bytes_read(inputs, inputs.fitted, name)
    if name != FULL and not inputs.config.reproducible:
        heads, us = heads_of(softmax, inputs.fitted), inputs.trial.us
        whole = bytes_read(inputs, inputs.fitted, FULL)
        fallback = max(fallback, whole * us(heads[name]) / us(heads[FULL]))
    return ScreenCosts(fallback, softmax.dim, SCATTERED * softmax.matrix.row_bytes)


def label_depth(inputs: BuildInputs, graded: bool = False) -> int:
    labels, target = inputs.config.labels, inputs.target or (EQUAL if graded else None)
    return labels if target is None else max(depths(target, labels, inputs.vocab_size))


def checked_target(target: Mapping[str, float], vocab_size: int) -> dict[str, float]:
    """Copy `target`. InvalidRequest unless it maps p1, p5 or p10 to numbers in (0, 1]."""
    allowed = f"{', '.join(TARGETS)}, each in (0, 1], none beyond V = {vocab_size}"
    if not target:
        raise InvalidRequest("target_precision", "nothing", allowed)
    for name, value in target.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name not in TARGETS or TARGETS[name] > vocab_size or not (number and 0 < value <= 1):
            raise InvalidRequest("target_precision", f"{name}={value}", allowed)
    return {name: float(value) for name, value in target.items()}


def refuse_unprovable(target: Mapping[str, float], rows: int, unseen: bool) -> None:
    name, precision = max(target.items(), key=lambda item: item[1])
    if precision <= bound_of(unseen)(np.ones(rows)):
        return
    got = f"{name}={precision:g} with {rows:,} held-out contexts"
    if precision == 1:
        allowed = "less than 1, which no number of contexts shows"
    else:
        needed = least_rows(precision, unseen)
        read = needed if unseen else HELD_OUT * needed
        where = "in `heldout`" if unseen else f"the last tenth of {read:,}"
        size = max(1, round(read * BYTES_A_TOKEN / 1000))
        allowed = f"{needed:,} or more, {where}: captured from about {size:,} kB of text"
    raise InvalidRequest("target_precision", got, f"{allowed}; or best_effort (--best-effort)")


def least_rows(precision: float, unseen: bool) -> int:
    """Return how many rows show a precision if all are right: Wilson's bound is N / (N + z^2)."""
    misses = 1.0 if unseen else MORE_MISSES
    rows = max(1, math.ceil(Z95**2 * (misses / (1 - precision) - 1)))
    while bound_of(unseen)(np.ones(rows)) < precision:  # rounding
        rows += 1
    return rows


def depths(target: Mapping[str, float], labels: int, vocab_size: int) -> tuple[int, ...]:
    least = max(labels, *(TARGETS[name] for name in target))
    return tuple(sorted({min(int(least * factor), vocab_size) for factor in DEEPER}))


@dataclass(frozen=True, eq=False)
class Search:
    inputs: FitInputs
    target: Mapping[str, float]
    costs: ScreenCosts
    us: Callable[[FittedScreen], float]

    @property
    def goal(self) -> PrecisionGoal:
        return PrecisionGoal(self.target, self.costs, self.inputs.bound, self.inputs.rest)

    def run(self) -> FittedScreen:
        """Judge plain k-means for all numbers of clusters and depths, and train the cheapest.

        More are trained until one reaches the target, unless the held-out contexts cannot show it.
        If none does: TargetNotReached or, with `best_effort`, the nearest.
        """
        reached: list[FittedScreen] = []
        nearest: FittedScreen | None = None
        inputs, goal, starts = self.inputs, self.goal, self._cheapest_starts()
        provable = inputs.bound(np.ones(inputs.heldout.rows))
        if max(self.target.values()) > provable:
            starts = starts[:1]
        for number, (centroids_CD, depth) in enumerate(starts, start=1):
            plain = Partition(inputs, centroids_CD, depth)
            screen = train_screen(inputs, plain, goal.plan)
            if screen.plan.reached:
                reached.append(screen)
            if nearest is None or screen.plan.cost < nearest.plan.cost:
                nearest = screen
            inputs.progress("train", number, max(number, min(TRAINED, len(starts))))
            if reached and number >= TRAINED:
                break
        if reached:
            read = {number: screen.plan.cost for number, screen in enumerate(reached)}
            return reached[cheapest(read, lambda number: self.us(reached[number]))]
        assert nearest is not None
        if inputs.best_effort:
            return nearest
        keep_P = nearest.partition.knapsack.select(nearest.plan.budget)
        bounds = goal.bounds(nearest.partition, keep_P)
        raise TargetNotReached(self.target, {**bounds, **nearest.summary, "provable": provable})

    def _cheapest_starts(self) -> list[tuple[Float32, int]]:
        ranked: list[tuple[float, Float32, int]] = []
        inputs, tried = self.inputs, self.inputs.config.clusters_tried
        labels = depths(self.target, inputs.config.labels, inputs.vocab_size)
        for number, clusters in enumerate(tried, start=1):
            centroids_CD = plain_centroids(inputs, clusters)
            for depth in reversed(labels):
                partition = Partition(inputs, centroids_CD, depth)
                ranked.append((self.goal.plan(partition).cost, centroids_CD, depth))
            inputs.progress("search", number, len(tried))
        return [each[1:] for each in sorted(ranked, key=lambda each: each[0])]
