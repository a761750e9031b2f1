"""Plans: what is launched to answer a batch, over buffers that are made once.

A plan is made for a number of rows and of answers. `run` launches kernels and nothing else, so that
it can be captured as a graph; it reads `hidden` and writes `found`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Found(NamedTuple):
    """A batch's answers; of rows that cannot be answered the ids are -1 and the logits NaN."""

    ids: Tensor  # [B, K] int32
    logits: Tensor  # [B, K] float32
    exact: Tensor  # [B] int8
    scanned: Tensor  # [B] int32


class Plan(Protocol):
    """Everything that is launched for B rows."""

    hidden: Tensor  # [B, D] float32

    @property
    def found(self) -> tuple[Tensor, ...]:
        """What is found for each row: a Found, of plans that look for the k best."""
        ...

    def run(self) -> None:
        """Launch it all; nothing is waited for."""
        ...


def empty_found(rows: int, k: int, device: torch.device) -> Found:
    """Room for the answers of a batch."""
    return Found(
        torch.empty((rows, k), dtype=torch.int32, device=device),
        torch.empty((rows, k), dtype=torch.float32, device=device),
        torch.empty(rows, dtype=torch.int8, device=device),
        torch.empty(rows, dtype=torch.int32, device=device),
    )


def above(count: int, least: int = 1) -> int:
    """The least power of two that is neither below `count` nor below `least`."""
    return max(least, 1 << (count - 1).bit_length())
