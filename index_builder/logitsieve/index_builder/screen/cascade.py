"""Chooses an operating point: lists, clusters to probe, and rows to escalate to the fallback.

Rows with the lowest cosines to their best centroid are escalated until the target precision is
reached. The paper has no such step (docs/screen.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Bool, Float64
from logitsieve.evaluation.precision import lower_bound
from logitsieve.heads.sketch import GRADES
from logitsieve.index_builder.fitting import Bound
from logitsieve.index_builder.screen.partition import MOST_PROBES, Partition
from logitsieve.index_builder.screen.training import UNREACHED, CascadePlan

TARGETS = {"p1": 1, "p5": 5, "p10": 10}
EQUAL = dict.fromkeys(("p1", "p5"), 1 - GRADES[-1])
PRECISE = 0.25  # step between budgets, in candidates per row
SHRINK = 0.8  # ratio of successive budgets tried with escalation
LEAST = 0.06  # the least such budget, relative to all labels
BYTES_A_TOKEN = 4
ROUNDED = 1e-9


class ScreenCosts(NamedTuple):
    """Bytes read for a row by the fallback, for a centroid, and for a candidate."""

    fallback: float
    centroid: float
    candidate: float

    def a_row(self, clusters: int, sizes_H: np.ndarray, escalated_H: Bool) -> float:
        scanned = float(np.where(escalated_H, 0, sizes_H).mean())
        share = float(escalated_H.mean())
        return self.centroid * clusters + self.candidate * scanned + share * self.fallback

    def most_escalated(
        self, clusters: int, sizes_H: np.ndarray, order_H: np.ndarray, limit: float
    ) -> int:
        """Return how many rows, in `order_H`, may be escalated at a cost below `limit`, or -1."""
        rows = len(order_H)
        scanned = sizes_H.sum() - np.cumsum([0, *sizes_H[order_H]])
        read = self.centroid * clusters
        read = read + (self.candidate * scanned + self.fallback * np.arange(rows + 1)) / rows
        cheaper = np.flatnonzero(read < limit * (1 + ROUNDED))
        return int(cheaper[-1]) if len(cheaper) else -1


@dataclass(frozen=True)
class PrecisionGoal:
    """Searches for the cheapest plan that meets `precision`; the fallback finds `rest` [H, K]."""

    precision: Mapping[str, float]
    costs: ScreenCosts
    bound: Bound = lower_bound
    rest: Bool | None = None

    def plan(self, partition: Partition) -> CascadePlan:
        best: CascadePlan | None = None
        most = partition.knapsack.everything
        for probes in range(1, min(MOST_PROBES, partition.clusters) + 1):
            budgets = [most * SHRINK**step for step in range(int(np.log(LEAST) / np.log(SHRINK)))]
            if (least := self._least_budget(partition, probes)) is not None:
                budgets = [least, *(budget for budget in budgets if budget < least)]
            for budget in budgets:
                plan = self._plan(partition, probes, budget, best.cost if best else np.inf)
                if plan is not None and (best is None or plan.cost < best.cost):
                    best = plan
        if best is not None:
            return best
        cost = UNREACHED + self.shortfall(partition, partition.knapsack.select(None))
        escalated = float((partition.heldout_cosines < partition.guarded).mean())
        return CascadePlan(None, cost, escalate=partition.guarded, escalated=escalated)

    def _plan(
        self, partition: Partition, probes: int, budget: float, limit: float
    ) -> CascadePlan | None:
        keep_P = partition.knapsack.select(budget)
        sizes_H, cosines_H = partition.heldout_sizes(keep_P, probes), partition.heldout_cosines
        order_H = np.argsort(cosines_H, kind="stable")
        most = self.costs.most_escalated(partition.clusters, sizes_H, order_H, limit)
        if most < np.searchsorted(cosines_H[order_H], partition.guarded):
            return None
        hits_HK = partition.heldout_hits(keep_P, probes)
        asked = self.precision, most, self.bound, self.rest
        escalate = least_escalation(hits_HK, cosines_H, *asked)
        if escalate is None:
            return None
        escalate = max(escalate, partition.guarded)
        escalated_H = cosines_H < escalate
        cost = self.costs.a_row(partition.clusters, sizes_H, escalated_H)
        return CascadePlan(budget, cost, probes, escalate, float(escalated_H.mean()))

    def _least_budget(self, partition: Partition, probes: int) -> float | None:
        low, high = 0.0, partition.knapsack.everything
        if self.shortfall(partition, partition.knapsack.select(None), probes) > 0:
            return None
        while high - low > PRECISE:
            middle = (low + high) / 2
            if self.shortfall(partition, partition.knapsack.select(middle), probes) > 0:
                low = middle
            else:
                high = middle
        return high

    def shortfall(self, partition: Partition, keep_P: Bool, probes: int = 1) -> float:
        """Return how far the worst lower bound is below its target; at most 0 if all meet it."""
        bounds = self.bounds(partition, keep_P, probes)
        return max(self.precision[name] - bounds[name] for name in self.precision)

    def bounds(self, partition: Partition, keep_P: Bool, probes: int = 1) -> dict[str, float]:
        shares = shares_right(partition.heldout_hits(keep_P, probes), self.precision)
        return {name: self.bound(share_H) for name, share_H in shares.items()}


def shares_right(hits_HK: Bool, precision: Mapping[str, float]) -> dict[str, Float64]:
    return {name: hits_HK[:, : TARGETS[name]].mean(axis=1) for name in precision}


def least_escalation(
    hits_HK: Bool,
    cosines_H: Float64,
    precision: Mapping[str, float],
    most: int | None = None,
    bound: Bound = lower_bound,
    rest_HK: Bool | None = None,
) -> float | None:
    """Return the least threshold of cosines at which the lower bounds meet `precision`.

    Rows below it are right as in `rest_HK` (None: always). -1 escalates no rows. None if it would
    take all rows, or more than `most`.
    """
    order_H = np.argsort(cosines_H, kind="stable")
    ranked_H = cosines_H[order_H]
    rank_H = np.empty_like(order_H)
    rank_H[order_H] = np.arange(len(order_H))
    rest_HK = np.ones_like(hits_HK) if rest_HK is None else rest_HK
    shares, rest = shares_right(hits_HK, precision), shares_right(rest_HK, precision)

    def met(escalated: int) -> bool:
        return all(
            bound(np.where(rank_H < escalated, rest[name], share_H)) >= precision[name]
            for name, share_H in shares.items()
        )

    low, high = 0, int(np.searchsorted(ranked_H, ranked_H[-1]))
    high = high if most is None else min(high, most)
    if met(0):
        return -1.0
    if high <= 0 or not met(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if met(middle):
            high = middle
        else:
            low = middle
    while ranked_H[high] == ranked_H[high - 1]:
        high += 1
    return float(np.clip((ranked_H[high - 1] + ranked_H[high]) / 2, -1.0, 1.0))
