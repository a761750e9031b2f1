"""Estimates whether a learned screen can beat the head `sketch`, before it is trained.

The share of held-out labels that are missing from the lists of plain k-means is taken as a power of
the number of contexts, fitted to a quarter, a half and all of a sample.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Bool
from logitsieve.heads import Head
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fitting import (
    NEAR,
    FitInputs,
    FitResult,
    exact_labels,
    fastest,
    heads_of,
    sample_rows,
)
from logitsieve.index_builder.screen.cascade import (
    BYTES_A_TOKEN,
    EQUAL,
    TARGETS,
    PrecisionGoal,
    ScreenCosts,
    shares_right,
)
from logitsieve.index_builder.screen.partition import Partition
from logitsieve.index_builder.screen.training import plain_centroids
from logitsieve.index_builder.workers import Shared

SAMPLED, BLOCKS = 4096, 512
CLUSTERS = (32, 128)
LEAST_OF_A_CLUSTER = 4
FURTHEST = 1000  # the power law is extended to this multiple of the contexts seen


class ScreenForecast(NamedTuple):
    left: float  # share of held-out contexts that a screen fitted to `rows` escalates
    rows: int
    needed: float  # contexts from which on it may pay; inf if over FURTHEST times `rows`

    def said(self, texts: int) -> str:
        needed = min(max(self.needed, self.rows), FURTHEST * self.rows)
        known = "about" if self.needed == needed > self.rows else "more than"
        rounded = round(needed, 1 - math.floor(math.log10(needed)))
        size = max(1, round(needed * BYTES_A_TOKEN / 1e6))
        line = (
            f"fitted to {self.rows:,} contexts, a screen leaves {self.left:.0%} of the held-out"
            " ones to the head sketch, which is cheaper by itself; a screen may pay from"
            f" {known} {rounded:,.0f} contexts on, which take as many tokens, {size:,} MB of text"
        )
        if texts > 1:
            return f"{line}. The worst of {texts} held-out texts decided"
        return f"{line}. One held-out text was judged: on text of other kinds it would leave more"


def few(contexts: Contexts) -> Contexts:
    return contexts.spread(SAMPLED, BLOCKS)


def at_equal_precision(inputs: FitInputs, head: Shared[Head], scratch: Path) -> FitInputs:
    """Return the inputs with the labels that the head finds and, unless set, its target."""
    K = min(max(TARGETS.values()), inputs.vocab_size)
    labels_HK = inputs.heldout_labels[:, :K]
    name = head.value.name
    found_HK = exact_labels(
        inputs, head, inputs.heldout, K, scratch / f"{name}.npy", f"judge {name}"
    )
    rest_HK = found_HK == labels_HK
    if inputs.target is None:
        shown = {name: inputs.bound(each) for name, each in shares_right(rest_HK, EQUAL).items()}
        target = {name: min(least, shown[name]) for name, least in EQUAL.items()}
        inputs = replace(inputs, target=target)
    return replace(inputs, rest=rest_HK)


def forecast(inputs: FitInputs, costs: ScreenCosts) -> ScreenForecast:
    assert inputs.target is not None
    goal = PrecisionGoal(inputs.target, costs, inputs.bound, inputs.rest)
    rows = min(SAMPLED, inputs.train.rows)
    counts, failed = [max(1, rows // share) for share in (4, 2, 1)], []
    for count in counts:
        part, tried = some(inputs, count), []
        for clusters in CLUSTERS:
            if clusters > max(CLUSTERS[0], count // LEAST_OF_A_CLUSTER):
                break
            centroids_CD = plain_centroids(part, min(clusters, count))
            partition = Partition(part, centroids_CD, part.labels.shape[1])
            tried.append((_failures(partition, inputs), partition))
        failed.append(min(share for share, _ in tried))
    plans = [(goal.plan(each), each) for _, each in tried]
    plan, best = min(plans, key=lambda pair: pair[0].cost)
    left = 1.0
    if plan.reached:
        sizes_H = best.heldout_sizes(best.knapsack.select(plan.budget), plan.probes)
        far_H = best.heldout_cosines < plan.escalate
        left, read = costliest_text(inputs.texts, costs, best.clusters, sizes_H, far_H)
        if read <= (1 - NEAR) * costs.fallback:
            return ScreenForecast(left, rows, rows)
    # If lists fail f times as often as allowed, a share 1 / f of the contexts may use them. These
    # have to pay for routing all contexts, and to save NEAR.
    routing = costs.centroid * best.clusters
    scan = costs.candidate * best.heldout_sizes(best.knapsack.select(None)).mean()
    paying = (NEAR * costs.fallback + routing) / max(costs.fallback - scan, 1e-30)
    slope = -float(np.polyfit(np.log(counts), np.log(np.maximum(failed, 1e-9)), 1)[0])
    growth = math.inf
    if paying < 1 and slope > 0:
        growth = math.exp(min(math.log(max(2.0, failed[-1] * paying)) / slope, 99.0))
    return ScreenForecast(left, rows, rows * growth if growth <= FURTHEST else math.inf)


def some(inputs: FitInputs, count: int) -> FitInputs:
    rows_S = sample_rows(inputs.train.rows, count, inputs.config.seed)
    hidden_SD = inputs.train.take(rows_S)
    return replace(
        inputs,
        train=Contexts([hidden_SD]),
        labels=inputs.labels[rows_S],
        sample=hidden_SD,
        sample_rows=np.arange(len(rows_S)),
    )


def costliest_text(
    texts: Sequence[slice], costs: ScreenCosts, clusters: int, sizes_H: np.ndarray, far_H: Bool
) -> tuple[float, float]:
    read = [costs.a_row(clusters, sizes_H[text], far_H[text]) for text in texts]
    return float(far_H[texts[int(np.argmax(read))]].mean()), max(read)


def _failures(partition: Partition, inputs: FitInputs) -> float:
    """Return the labels missing from full lists, relative to those allowed, for the worst text."""
    assert inputs.target is not None
    hits_HK = partition.heldout_hits(partition.knapsack.select(None))
    shares = shares_right(hits_HK, inputs.target)
    allowed = {name: 1 - least for name, least in inputs.target.items()}
    return max(
        float(1 - shares[name][text].mean()) / allowed[name]
        for name in allowed
        for text in inputs.texts
    )


def faster_fallback(inputs: FitInputs, costs: ScreenCosts, screen: FitResult) -> float | None:
    """Return the share that a screen leaves to the sketch; None if the screen is cheaper."""
    heads = heads_of(inputs.softmax, {**inputs.fitted, "screen": screen}, fallback=inputs.fallback)
    trial, rows = inputs.trial, inputs.heldout.rows
    top = heads["screen"].topk(trial.hidden_states, trial.k)
    ends = [text.indices(rows)[1] * len(trial.hidden_states) // rows for text in inputs.texts]
    parts = [slice(*each) for each in pairwise([0, *ends]) if each[0] < each[1]]
    clusters = len(screen.arrays["centroids"])
    left, read = costliest_text(parts, costs, clusters, top.scanned, top.fallback)
    lost = read >= costs.fallback
    if not (lost or inputs.config.reproducible):
        names = inputs.fallback, "screen"
        lost = fastest(names, lambda name: trial.us(heads[name])) == inputs.fallback
    return left if lost else None
