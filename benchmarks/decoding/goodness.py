"""Whether draws follow a distribution: Pearson's chi-square, total variation, Kolmogorov-Smirnov.

Shape letters: V ids, R simulations.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt
from typing import NamedTuple

import numpy as np
import torch

from logitsieve.api.results import Float64, Int64

LEAST_EXPECTED = 10.0  # draws in a cell; what is rarer shares one
TERMS = 100  # of Kolmogorov's series


class Chi(NamedTuple):
    """Pearson's statistic over the cells."""

    statistic: float
    cells: int
    p_value: float


def chi_square(counts_V: Int64, probs_V: Float64) -> Chi:
    """Of counts against probabilities; the ids that expect too few share a cell."""
    total = int(counts_V.sum())
    order = np.argsort(-probs_V)
    expected, seen = probs_V[order] * total, counts_V[order].astype(np.float64)
    own = int((expected >= LEAST_EXPECTED).sum())
    rest = expected[own:].sum()
    if rest < LEAST_EXPECTED and own:
        own -= 1
    cells = np.append(expected[:own], expected[own:].sum())
    found = np.append(seen[:own], seen[own:].sum())
    statistic = float((((found - cells) ** 2)[cells > 0] / cells[cells > 0]).sum())
    freedom = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    p_value = float(torch.special.gammaincc(freedom, half)) if len(cells) > 1 else 1.0
    return Chi(statistic, len(cells), p_value)


class Variation(NamedTuple):
    """Total variation between counts and probabilities, beside what exact draws have."""

    distance: float
    expected: float  # mean over simulated exact draws
    deviation: float
    p_value: float  # share of simulations at least as far


def total_variation(
    counts_V: Int64, probs_V: Float64, simulations: int, random: np.random.Generator
) -> Variation:
    """Half the sum of |count / N - p|; so many multinomials of the same size are its yardstick."""
    total = int(counts_V.sum())
    null_R = np.array(
        [_distance(random.multinomial(total, probs_V), probs_V) for _ in range(simulations)]
    )
    distance = _distance(counts_V, probs_V)
    p_value = (1 + int((null_R >= distance).sum())) / (1 + simulations)
    return Variation(distance, float(null_R.mean()), float(null_R.std()), p_value)


def _distance(counts_V: Int64, probs_V: Float64) -> float:
    return float(np.abs(counts_V / counts_V.sum() - probs_V).sum() / 2)


def kolmogorov_smirnov(values: Sequence[float]) -> tuple[float, float]:
    """(Largest distance from the uniform distribution, its p-value), as Stephens 1970 has it."""
    ordered, count = np.sort(values), len(values)
    above = (np.arange(1, count + 1) / count - ordered).max()
    below = (ordered - np.arange(count) / count).max()
    distance = float(max(above, below))
    reach = (sqrt(count) + 0.12 + 0.11 / sqrt(count)) * distance
    if reach < 0.2:  # the series is slow there, and 1 to twelve digits
        return distance, 1.0
    terms = ((-1) ** (j - 1) * exp(-2 * (j * reach) ** 2) for j in range(1, TERMS))
    return distance, min(1.0, max(0.0, 2 * sum(terms)))
