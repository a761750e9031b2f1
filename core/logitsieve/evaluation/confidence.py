"""Confidence bounds of a measured precision whose neighbouring rows resemble each other.

Student's t over the means of contiguous blocks (batch means; Law and Kelton, "Simulation Modeling
and Analysis"), never above Wilson's interval for independent rows (Wilson, JASA 22, 1927), since
blocks without a single miss have no variance at all.

Shape letters: N rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from logitsieve.api.results import Float64

BLOCKS = 20
LEAST_BLOCKS = 5
LEAST_BLOCK_ROWS = 10
Z95 = 1.6448536269514722  # the normal distribution's one-sided 95 % point
UNEVEN = 0.01  # a block this far below the mean matters ...
UNEVEN_SIGMAS = 4  # ... if chance alone would hardly put it there


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A mean over rows, each between 0 and 1, and the spread of its contiguous blocks."""

    mean: float
    low: float  # the one-sided lower 95 % confidence bound
    worst: float  # the lowest block mean
    best: float  # the highest
    uneven: bool  # the worst block is far below the mean: the fitted contexts were not spread


PROVEN = Precision(mean=1.0, low=1.0, worst=1.0, best=1.0, uneven=False)


def summarize(share_N: Float64) -> Precision:
    """The precision of N >= 1 rows in their order; `share_N` is the share right in each."""
    blocks = block_means(share_N)
    mean, worst = float(share_N.mean()), float(blocks.min())
    sigma = math.sqrt(max(mean * (1 - mean), 0.0) * len(blocks) / len(share_N))
    return Precision(
        mean=mean,
        low=lower_bound(share_N),
        worst=worst,
        best=float(blocks.max()),
        uneven=mean - worst > max(UNEVEN, UNEVEN_SIGMAS * sigma),
    )


def block_means(share_N: Float64) -> Float64:
    """Means of up to BLOCKS contiguous blocks of nearly equal size."""
    rows, count = len(share_N), max(1, min(BLOCKS, len(share_N) // LEAST_BLOCK_ROWS))
    bounds = np.arange(count + 1) * rows // count
    means: Float64 = np.add.reduceat(share_N, bounds[:-1]) / np.diff(bounds)
    return means


def lower_bound(share_N: Float64) -> float:
    """The one-sided lower 95 % confidence bound of the mean of N rows."""
    mean, blocks = float(share_N.mean()), block_means(share_N)
    low = wilson(mean, len(share_N))
    if len(blocks) < LEAST_BLOCKS:
        return low
    error = float(blocks.std(ddof=1)) / math.sqrt(len(blocks))
    return max(0.0, min(low, mean - student95(len(blocks) - 1) * error))


def wilson(mean: float, rows: int) -> float:
    """Wilson's lower bound for `rows` independent rows."""
    z2 = Z95 * Z95
    spread = Z95 * math.sqrt(max(mean * (1 - mean), 0.0) / rows + z2 / (4 * rows * rows))
    return max(0.0, (mean + z2 / (2 * rows) - spread) / (1 + z2 / rows))


def student95(freedom: int) -> float:
    """Student's one-sided 95 % point for `freedom` >= 4, right to 0.003.

    The expansion in 1 / freedom: Abramowitz and Stegun, 26.7.5.
    """
    z = Z95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
