"""The learned screen: clusters of contexts, and a short list of candidate labels for each.

Chen et al. 2019, Learning to Screen, Algorithm 1, derived in docs/screen.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32
from logitsieve.index_builder.fitting import FitInputs, FitResult
from logitsieve.index_builder.screen.centroids import train_centroids, trainable_scale
from logitsieve.index_builder.screen.partition import Partition
from logitsieve.index_builder.screen.spherical_kmeans import spherical_kmeans
from logitsieve.utils.options import Progress, no_progress

UNREACHED = 1e9  # cost of a partition that misses the target with every label kept


class CascadePlan(NamedTuple):
    budget: float | None
    cost: float  # the lowest wins
    probes: int = 1
    escalate: float = -1.0
    escalated: float = 0.0  # share of the rows left to the fallback

    @property
    def reached(self) -> bool:
        return self.cost < UNREACHED


def fixed_plan(partition: Partition, budget: float | None) -> CascadePlan:
    """Return the user's budget; partitions are ranked by their held-out loss (eq. 6)."""
    loss = partition.heldout_loss(partition.knapsack.select(budget))
    escalated = float((partition.heldout_cosines < partition.guarded).mean())
    return CascadePlan(budget, loss, escalate=partition.guarded, escalated=escalated)


@dataclass(frozen=True, eq=False)
class FittedScreen:
    partition: Partition
    plan: CascadePlan
    best_round: int  # 0 is plain k-means

    def result(self) -> FitResult:
        return FitResult(self.arrays, self.summary, self.knobs)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return self.partition.arrays(self.partition.knapsack.select(self.plan.budget))

    @property
    def summary(self) -> dict[str, float]:
        partition = self.partition
        return {
            "clusters": partition.clusters,
            "labels": partition.depth,
            "candidates": partition.candidates(partition.knapsack.select(self.plan.budget)),
            "best_round": self.best_round,
            **self.knobs,
            "escalated": self.plan.escalated,
        }

    @property
    def knobs(self) -> dict[str, float]:
        return {"probes": self.plan.probes, "escalate": self.plan.escalate}


def train_fixed(inputs: FitInputs) -> FittedScreen:
    config = inputs.config
    plain = Partition(inputs, plain_centroids(inputs, config.clusters), config.labels)
    return train_screen(
        inputs, plain, lambda each: fixed_plan(each, config.budget), inputs.progress
    )


def plain_centroids(inputs: FitInputs, clusters: int) -> Float32:
    config = inputs.config
    unit_CD = spherical_kmeans(inputs.sample, clusters, config, config.seed, inputs.workers)
    return unit_CD * np.float32(trainable_scale(inputs.sample, unit_CD))


def train_screen(
    inputs: FitInputs,
    plain: Partition,
    plan_of: Callable[[Partition], CascadePlan],
    progress: Progress = no_progress,
) -> FittedScreen:
    """Lines 5-8 from a plain partition, lists first; return the round with the cheapest plan."""
    config = inputs.config
    labels_SK = inputs.labels[inputs.sample_rows, : plain.depth].astype(np.int64)
    latest, plan = plain, plan_of(plain)
    best, best_plan, best_round = latest, plan, 0
    for number in range(1, config.rounds + 1):
        keep_P = latest.knapsack.select(plan.budget)
        trained_CD = train_centroids(
            latest.centroids_CD,
            inputs.sample,
            labels_SK,
            latest.table(keep_P),
            plan.budget,
            config,
            config.seed + number,
        )
        latest = Partition(inputs, trained_CD, plain.depth)
        plan = plan_of(latest)
        if plan.cost < best_plan.cost:
            best, best_plan, best_round = latest, plan, number
        progress("train", number, config.rounds)
    return FittedScreen(best, best_plan, best_round)
