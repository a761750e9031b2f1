"""The screen of an index: trained with a given budget, or searched for to meet a target precision.

The search takes the least measured time. The greedy order of a partition fixes its lists at every
budget, and their contents decide which rows to escalate, so the best operating point needs no
further fit: see cascade.py.

Shape letters: D hidden size, C clusters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest, TargetNotReached
from logitsieve.api.results import Float32
from logitsieve.evaluation import us_per_row
from logitsieve.evaluation.precision import Z95, lower_bound
from logitsieve.evaluation.timing import TIMED_K
from logitsieve.heads import Head
from logitsieve.heads._base.spec import Arrays
from logitsieve.index_builder.calibrate import TIMED_ROWS
from logitsieve.index_builder.data.contexts import HELD_OUT
from logitsieve.index_builder.fitting import BuildInputs, FitInputs, FitResult, heads_of
from logitsieve.index_builder.screen.cascade import (
    MORE_MISSES,
    TARGETS,
    UNREACHED,
    Bound,
    PrecisionGoal,
    ScreenCosts,
    Timer,
    measure,
    same_text_bound,
)
from logitsieve.index_builder.screen.partition import Partition
from logitsieve.index_builder.screen.training import (
    FittedScreen,
    plain_centroids,
    train_fixed,
    train_screen,
)

DEEPER = (1.0, 1.5, 2.0, 4.0)  # lists of more labels than the target counts generalise better
TRAINED = 4  # partitions trained at least, the fastest of the plain ones
TIMINGS = 5  # times each finalist is timed, in turn; the least counts, for load only ever adds
PROMISED = 0.01  # guard of a screen that promises a precision
BYTES_A_TOKEN = 4  # of English text, about


def fit_screen(inputs: FitInputs) -> FitResult:
    """A screen with the budget configured, or the fastest that meets the target of `inputs`.

    With `certified` among the heads fitted before, whether the screen bounds its candidates first
    is decided by measuring. Times are those of the public `topk`, one row a call, one thread.
    """
    hidden = inputs.heldout.sample(TIMED_ROWS)
    k = min(TIMED_K, inputs.vocab_size)

    def us(head: Head) -> float:
        return us_per_row(head, hidden, k, 1)

    def screen(result: FitResult) -> Head:
        fitted = {**inputs.fitted, "screen": result}
        return heads_of(inputs.softmax, fitted, fallback=inputs.fallback)["screen"]

    def timer(arrays: Arrays, knobs: Mapping[str, float]) -> float:
        return us(screen(FitResult(arrays, {}, knobs)))

    if (target := inputs.target) is None:
        result = train_fixed(inputs).result()
    else:
        if inputs.config.guard is None:
            inputs = replace(inputs, config=replace(inputs.config, guard=PROMISED))
        heads = heads_of(inputs.softmax, inputs.fitted)
        proving = [name for name, head in heads.items() if head.proves]
        fallback_us = us(heads[inputs.fallback or proving[-1]])
        result = Search(inputs, target, timer, fallback_us).run().result()
    if "certified" not in inputs.fitted or inputs.config.reproducible:
        return result
    plain, bounded = (us(screen(result).with_knobs(prescreen=on)) for on in (0, 1))
    return replace(result, knobs={**result.knobs, "prescreen": int(bounded < plain)})


def label_depth(inputs: BuildInputs) -> int:
    """Labels a context that a fit needs."""
    labels, target = inputs.config.labels, inputs.target
    return labels if target is None else max(depths(target, labels, inputs.vocab_size))


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


def refuse_unprovable(target: Mapping[str, float], rows: int, unseen: bool) -> None:
    """InvalidRequest where the bounds of so many held-out contexts, all right, miss the target."""
    name, wanted = max(target.items(), key=lambda item: item[1])
    if wanted <= _bound(unseen)(np.ones(rows)):
        return
    got = f"{name}={wanted:g} with {rows:,} held-out contexts"
    if wanted == 1:
        allowed = "less than 1, which no number of contexts shows"
    else:
        needed = least_rows(wanted, unseen)
        read = needed if unseen else HELD_OUT * needed
        where = "in `heldout`" if unseen else f"the last tenth of {read:,}"
        size = max(1, round(read * BYTES_A_TOKEN / 1000))
        allowed = f"{needed:,} or more, {where}: captured from about {size:,} kB of text"
    raise InvalidRequest("target_precision", got, f"{allowed}; or best_effort (--best-effort)")


def least_rows(wanted: float, unseen: bool) -> int:
    """The least number of held-out contexts, all right, that show a precision below 1.

    Wilson's bound of N of them is N / (N + z^2).
    """
    misses = 1.0 if unseen else MORE_MISSES
    rows = max(1, math.ceil(Z95**2 * (misses / (1 - wanted) - 1)))
    while _bound(unseen)(np.ones(rows)) < wanted:  # rounding
        rows += 1
    return rows


def _bound(unseen: bool) -> Bound:
    """The bound that has to meet a target: a stricter one where no unseen text judges."""
    return lower_bound if unseen else same_text_bound


class Start(NamedTuple):
    """A start of training: plain k-means [C, D], and the costs of its screens."""

    centroids: Float32
    depth: int
    costs: ScreenCosts


def depths(target: Mapping[str, float], labels: int, vocab_size: int) -> tuple[int, ...]:
    """Numbers of labels a context that the search counts: those of the target, and more."""
    least = max(labels, *(TARGETS[name] for name in target))
    return tuple(sorted({min(int(least * factor), vocab_size) for factor in DEEPER}))


@dataclass(frozen=True, eq=False)
class Search:
    """The fastest screen that meets `target`, over clusters, labels, budget and knobs."""

    inputs: FitInputs
    target: Mapping[str, float]
    timer: Timer
    fallback_us: float  # of a row that the screen leaves to its fallback, whose answers are right

    @property
    def bound(self) -> Bound:
        """The bound that has to meet the target."""
        return _bound(self.inputs.unseen)

    def run(self) -> FittedScreen:
        """Judge plain partitions for all clusters and depths; train and time the fastest.

        The slower ones are trained too while none has reached the target, unless it is beyond what
        the held-out contexts can show of any screen. Where only the fallback answering all rows
        would meet the target: TargetNotReached with the nearest screen, or that with `best_effort`.
        """
        reached: list[FittedScreen] = []
        nearest: tuple[FittedScreen, PrecisionGoal] | None = None
        inputs, starts = self.inputs, self._fastest_starts()
        provable = self.bound(np.ones(inputs.heldout.rows))
        if max(self.target.values()) > provable:
            starts = starts[:1]
        for number, begin in enumerate(starts, start=1):
            goal = PrecisionGoal(self.target, begin.costs, self.bound)
            plain = Partition(inputs, begin.centroids, begin.depth)
            screen = train_screen(inputs, plain, goal.plan)
            if screen.plan.cost < UNREACHED:
                reached.append(screen)
            if nearest is None or screen.plan.cost < nearest[0].plan.cost:
                nearest = screen, goal
            inputs.progress("train", number, max(number, min(TRAINED, len(starts))))
            if reached and number >= TRAINED:
                break
        if reached:
            return self._fastest(reached)
        assert nearest is not None
        screen, goal = nearest
        if inputs.best_effort:
            return screen
        keep_P = screen.partition.knapsack.select(screen.plan.budget)
        bounds = goal.bounds(screen.partition, keep_P)
        raise TargetNotReached(self.target, {**bounds, **screen.summary, "provable": provable})

    def _fastest_starts(self) -> list[Start]:
        """Plain k-means at all numbers of clusters and depths, the fastest first.

        One that misses the target comes last: training may make up for it.
        The partitions are not kept: most of them are never trained.
        """
        ranked: list[tuple[float, Start]] = []
        inputs, tried = self.inputs, self.inputs.config.clusters_tried
        labels = depths(self.target, inputs.config.labels, inputs.vocab_size)
        for number, clusters in enumerate(tried, start=1):
            centroids_CD = plain_centroids(inputs, clusters)
            costs: ScreenCosts | None = None
            for depth in reversed(labels):
                partition = Partition(inputs, centroids_CD, depth)
                costs = costs or measure(partition, self.timer, self.fallback_us)
                cost = PrecisionGoal(self.target, costs, self.bound).plan(partition).cost
                ranked.append((cost, Start(centroids_CD, depth, costs)))
            inputs.progress("search", number, len(tried))
        return [begin for _, begin in sorted(ranked, key=lambda entry: entry[0])]

    def _fastest(self, screens: list[FittedScreen]) -> FittedScreen:
        """The fastest, timed in turn, so that a busy moment of the machine meets all of them."""
        least = [float("inf")] * len(screens)
        for _ in range(TIMINGS):
            for number, screen in enumerate(screens):
                least[number] = min(least[number], self.timer(screen.arrays, screen.knobs))
        return screens[least.index(min(least))]
