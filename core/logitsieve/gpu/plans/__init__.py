"""Plans: the launches that answer a batch, over buffers that are made once.

A plan is made for a number of rows and of answers. `run` launches kernels and nothing else, so that
it can be captured as a graph; it reads `hidden` and writes `output`.

Shape letters: B rows of hidden, D hidden size, K answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from triton import next_power_of_2

from logitsieve.gpu.kernels.status import PASSED_ON


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
    def found(self) -> tuple[Tensor, ...]:
        """The answers of each row: a PlanOutput from plans for the k best."""
        ...

    def run(self) -> None:
        """Launch the kernels; returns at once."""
        ...


def empty_output(rows: int, k: int, device: torch.device) -> PlanOutput:
    """Room for the answers of a batch."""
    return PlanOutput(
        torch.empty((rows, k), dtype=torch.int32, device=device),
        torch.empty((rows, k), dtype=torch.float32, device=device),
        torch.empty(rows, dtype=torch.int8, device=device),
        torch.empty(rows, dtype=torch.int32, device=device),
    )


# A plan for the rows of hidden [B, D] whose status [B] is PASSED_ON, of (hidden, k, found, status).
Fallback = Callable[[Tensor, int, PlanOutput, Tensor], LaunchPlan]


class FallbackPlan:
    """Passes all rows on."""

    def __init__(self, hidden: Tensor, k: int, fallback: Fallback) -> None:
        self.hidden, self.found = hidden, empty_output(len(hidden), k, hidden.device)
        self._status = torch.empty(len(hidden), dtype=torch.int32, device=hidden.device)
        self._fallback = fallback(hidden, k, self.found, self._status)

    def run(self) -> None:
        self._status.fill_(PASSED_ON.value)
        self._fallback.run()


def row_block(rows: int) -> int:
    """Rows of hidden for one program."""
    return 1 if rows == 1 else min(64, max(16, next_power_of_2(rows)))
