"""Plans: the launches that answer a batch, over buffers that are made once.

A plan is made for a number of rows and of answers. `run` launches kernels and nothing else, so that
it can be captured as a graph; it reads `hidden` and writes `output`.

Shape letters: B rows of hidden, D hidden size, K answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from triton import next_power_of_2


class PlanOutput(NamedTuple):
    """A batch's answers; of rows that cannot be answered the ids are -1 and the logits NaN."""

    ids: Tensor  # [B, K] int32
    logits: Tensor  # [B, K] float32
    exact: Tensor  # [B] int8
    scanned: Tensor  # [B] int32


class LaunchPlan(Protocol):
    """Everything that is launched for B rows."""

    hidden: Tensor  # [B, D] float32

    @property
    def output(self) -> tuple[Tensor, ...]:
        """The answers of each row: a PlanOutput from plans for the k best."""

    def run(self) -> None:
        """Launch the kernels; returns at once."""


# A fallback answers the rows whose status [B] is PASSED_ON, into the output of the plan before it.
After: TypeAlias = tuple[PlanOutput, Tensor]  # that output and status
Fallback: TypeAlias = Callable[[Tensor, int, After | None], LaunchPlan]  # of (hidden, k, after)


def int32s(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.int32)


def float64s(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float64)


def empty_output(rows: int, k: int, device: torch.device) -> PlanOutput:
    """Room for the answers of a batch."""
    ids = torch.empty((rows, k), dtype=torch.int32, device=device)
    exact = ids.new_empty(rows, dtype=torch.int8)
    return PlanOutput(ids, ids.new_empty((rows, k), dtype=torch.float32), exact, int32s(ids, rows))


def row_block(rows: int) -> int:
    """Rows of hidden for one program."""
    return 1 if rows == 1 else min(64, max(16, next_power_of_2(rows)))
