"""A plan's answers compared with those of a head on the host."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from logitsieve.api.results import TopK
from logitsieve.gpu.matrix import Matrix
from logitsieve.gpu.plans import After, Fallback, LaunchPlan, PlanOutput
from logitsieve.gpu.plans.exact import ExactPlan


def exact_behind(matrix: Matrix) -> Fallback:
    """The exact plan for rows that are passed on."""

    def plan(hidden: Tensor, k: int, after: After | None) -> LaunchPlan:
        return ExactPlan(matrix, hidden, k, after)

    return plan


def nothing_behind(hidden: Tensor, k: int, after: After | None) -> LaunchPlan:
    """For plans that must not need a fallback."""
    raise AssertionError("a fallback was asked for")


def assert_answers(output: PlanOutput, top: TopK, rows: np.ndarray | slice = slice(None)) -> None:
    """These rows of a plan's answers are the head's, bit for bit."""
    for mine, theirs in zip(output, top, strict=True):
        np.testing.assert_array_equal(mine.cpu().numpy()[rows], theirs)


def assert_refused(output: PlanOutput, row: int) -> None:
    """The row has no ids."""
    assert (output.ids[row] == -1).all()
    assert output.logits[row].isnan().all()
    assert not output.exact[row]
    assert not output.scanned[row]
