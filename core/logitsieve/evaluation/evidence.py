"""A precision measured twice: what a build's held-out contexts and those of a sweep prove together.

A mean stands with its half-width, mean - low. Where two samples are of one population, the mean of
all their rows is the mean of the means weighted by rows, and its half-width the root of the sum of
their squared weighted half-widths: variances of independent samples add.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from logitsieve.evaluation.precision import wilson

EASIER = 2  # half-widths of the difference: beyond them the new contexts are of an easier kind
MOST_ROWS = 10**9


class MeasuredPrecision(NamedTuple):
    """P@k on `rows` contexts: its mean and the lower 95 % bound of that."""

    mean: float
    low: float
    rows: int


def contradicts(new: MeasuredPrecision, built: MeasuredPrecision) -> bool:
    """True if the means differ by more than chance explains, so that `new` alone counts.

    In samples of one population the new mean is that much lower in at most 5 % of cases. To find
    the new contexts easier takes twice the distance, for that raises the bound.
    """
    chance = math.hypot(new.mean - new.low, built.mean - built.low)
    return not -EASIER * chance <= built.mean - new.mean <= chance


def combined_low(new: MeasuredPrecision, built: MeasuredPrecision | None) -> float:
    """The lower 95 % bound of the precision by both samples.

    Where they do not contradict each other, that of the build stays if it had more rows: fewer
    contexts that agree with it take nothing back. Otherwise it is the bound of all rows together.
    It depends on no other sweep, so repeated sweeps count nothing twice.
    """
    if built is None or contradicts(new, built):
        return new.low
    if new.rows < built.rows:
        return built.low
    rows = new.rows + built.rows
    mean = (new.rows * new.mean + built.rows * built.mean) / rows
    half = math.hypot(new.rows * (new.mean - new.low), built.rows * (built.mean - built.low)) / rows
    return max(0.0, mean - half)


def rows_needed(
    new: MeasuredPrecision, built: MeasuredPrecision | None, wanted: float
) -> int | None:
    """The least rows of such contexts whose bound, with the build's, would reach `wanted`.

    It assumes that the mean stays, and that half-widths shrink with the root of the rows. None
    where no number of rows would do.
    """
    rows = new.rows
    while _low_at(new, built, rows) < wanted:
        rows *= 2
        if rows > MOST_ROWS:
            return None
    least = max(new.rows - 1, rows // 2)
    while rows - least > 1:
        middle = (least + rows) // 2
        if _low_at(new, built, middle) < wanted:
            least = middle
        else:
            rows = middle
    return rows


def _low_at(new: MeasuredPrecision, built: MeasuredPrecision | None, rows: int) -> float:
    shrink = math.sqrt(new.rows / rows)
    if new.mean == 1:  # without a miss, Wilson's half-width shrinks with the rows themselves
        shrink = (1 - wilson(1.0, rows)) / (1 - wilson(1.0, new.rows))
    low = new.mean - shrink * (new.mean - new.low)
    return combined_low(MeasuredPrecision(new.mean, low, rows), built)
