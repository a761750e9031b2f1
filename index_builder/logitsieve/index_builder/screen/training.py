"""Trains a screen: clusters of contexts, each with a short list of candidate labels.

Chen et al. 2019, Learning to Screen, Algorithm 1; derived in benchmarks/papers/screen.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Int64
from logitsieve.index_builder.config import ScreenConfig
from logitsieve.index_builder.fitting import FitInputs, FitResult
from logitsieve.index_builder.screen.partition import Partition
from logitsieve.index_builder.screen.spherical_kmeans import TINY, spherical_kmeans
from logitsieve.utils.options import Progress, no_progress

AGREEMENT = 0.9  # share of Gumbel samples that should pick the nearest centroid
SCALE_ROWS = 8192
AVERAGED = 0.99


def trainable_scale(hidden_SD: Float32, centroids_CD: Float32) -> float:
    """Return the scale of centroids at which AGREEMENT of the samples pick the nearest one.

    The expected share is the mean of max_t P(t|h), eq. 4.
    """
    stride = max(1, len(hidden_SD) // SCALE_ROWS)
    scores_SC = hidden_SD[::stride] @ centroids_CD.T
    largest = float(np.abs(scores_SC).max())
    if len(centroids_CD) == 1 or largest == 0:
        return 1.0
    scores_SC -= scores_SC.max(axis=1, keepdims=True)
    low, high = 0.0, 1e4 / largest
    for _ in range(40):
        middle = (low + high) / 2
        if (1 / np.exp(np.float32(middle) * scores_SC).sum(axis=1)).mean() < AGREEMENT:
            low = middle
        else:
            high = middle
    return high


def softmax(scores_BC: Float32) -> Float32:
    powers_BC = np.exp(scores_BC - scores_BC.max(axis=1, keepdims=True))
    return np.asarray(powers_BC / powers_BC.sum(axis=1, keepdims=True))


def softmax_gradient(p_BC: Float32, gradient_BC: Float32) -> Float32:
    """Return the gradient by the scores of eq. 5, given the one by its probabilities."""
    mean_B = np.einsum("bc,bc->b", p_BC, gradient_BC)
    return np.asarray(p_BC * (gradient_BC - mean_B[:, None]))


def cluster_loss(
    labels_BK: Int64, table_VC: np.ndarray, sizes_C: Float32, waste_weight: float
) -> Float32:
    """Return eq. 6 of each row under each cluster, [B, C]; sizes_C are the sums of table_VC."""
    hits_BC = np.zeros((len(labels_BK), len(sizes_C)), np.float32)
    for labels_B in labels_BK.T:
        hits_BC += table_VC[labels_B]
    depth, waste = np.float32(labels_BK.shape[1]), np.float32(waste_weight)
    return np.asarray((depth - hits_BC) + waste * (sizes_C - hits_BC))


class MovingAverage:
    """The paper's Lbar: candidates per row, averaged over batches."""

    def __init__(self) -> None:
        self._value: float | None = None

    def add(self, mean: float) -> float:
        past = mean if self._value is None else self._value
        self._value = AVERAGED * past + (1 - AVERAGED) * mean
        return self._value


class Adam:
    """Kingma and Ba 2015, Algorithm 1, for one array, which is changed in place."""

    def __init__(self, parameter: Float32, lr: float) -> None:
        self._parameter, self._lr, self._steps = parameter, lr, 0
        self._mean, self._square = np.zeros_like(parameter), np.zeros_like(parameter)

    def step(
        self, gradient: Float32, decay: float = 0.9, decay2: float = 0.999, eps: float = 1e-8
    ) -> None:
        self._steps += 1
        self._mean += np.float32(1 - decay) * (gradient - self._mean)
        self._square += np.float32(1 - decay2) * (gradient * gradient - self._square)
        root = np.sqrt(self._square) / np.float32(math.sqrt(1 - decay2**self._steps))
        size = self._lr / (1 - decay**self._steps)
        self._parameter -= np.float32(size) * self._mean / (root + np.float32(eps))


def gradient(
    v_CD: Float32,
    hidden_BD: Float32,
    noise_BC: Float32,
    loss_BC: Float32,
    sizes_C: Float32,
    average: MovingAverage,
    budget: float,
    overrun_weight: float,
) -> Float32:
    """Return the gradient by v of sum_i sum_t pbar_it l_it + gamma max(0, Lbar - B), eq. 8.

    pbar is the one-hot vector of the sampled cluster, with the gradient of eq. 5 at temperature 1.
    The value of Lbar is the moving average, but its gradient is that of the batch's mean.
    """
    p_BC = softmax(hidden_BD @ v_CD.T + noise_BC)
    over = average.add(float(sizes_C[p_BC.argmax(axis=1)].mean())) > budget
    overrun_C = np.float32(over * overrun_weight / len(hidden_BD)) * sizes_C
    return np.asarray(softmax_gradient(p_BC, loss_BC + overrun_C).T @ hidden_BD)


def train_centroids(
    centroids_CD: Float32,
    hidden_SD: Float32,
    labels_SK: Int64,
    table_VC: np.ndarray,
    budget: float | None,
    config: ScreenConfig,
    seed: int,
) -> Float32:
    """Return v after `config.steps` steps of Adam, at a rate relative to the centroids' size."""
    random = np.random.default_rng(seed)
    v_CD = centroids_CD.copy()
    adam = Adam(v_CD, config.learning_rate * float(np.sqrt(np.square(v_CD).mean())))
    sizes_C, average = table_VC.sum(axis=0, dtype=np.float32), MovingAverage()
    most = math.inf if budget is None else budget
    for _ in range(config.steps):
        rows = random.integers(len(hidden_SD), size=config.batch_rows)
        waits_BC = random.standard_exponential((len(rows), len(v_CD)), np.float32)
        noise_BC = -np.log(np.maximum(waits_BC, TINY))
        loss_BC = cluster_loss(labels_SK[rows], table_VC, sizes_C, config.waste_weight)
        batch = v_CD, hidden_SD[rows], noise_BC, loss_BC, sizes_C
        adam.step(gradient(*batch, average, most, config.overrun_weight))
    return v_CD


UNREACHED = 1e9  # the least cost of a partition that misses the target with all labels


class CascadePlan(NamedTuple):
    budget: float | None
    cost: float
    probes: int = 1
    escalate: float = -1.0
    escalated: float = 0.0

    @property
    def reached(self) -> bool:
        return self.cost < UNREACHED


def fixed_plan(partition: Partition, budget: float | None) -> CascadePlan:
    """Return a plan for the user's budget, with the held-out loss (eq. 6) as its cost."""
    loss = partition.heldout_loss(partition.knapsack.select(budget))
    escalated = float((partition.heldout_cosines < partition.guarded).mean())
    return CascadePlan(budget, loss, escalate=partition.guarded, escalated=escalated)


@dataclass(frozen=True, eq=False)
class FittedScreen:
    partition: Partition
    plan: CascadePlan
    best_round: int

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
    """Run lines 5-8 from a plain partition, lists first; return the round with the best plan."""
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
