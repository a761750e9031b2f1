"""Random numbers of a training step, by counter: (seed, rank, step, draw, place) decides each.

So the state of a run is two integers, and a resumed run draws what the other would have drawn. The
rank of a process is part of the key: processes draw different candidates from equal states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from logitsieve.kernels.training.draws import fill_distinct, fill_uniforms

LARGEST_SEED = 2**31 - 1  # what faiss takes
_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15  # odd: ranks get keys that differ


@dataclass(frozen=True)
class Step:
    """One step's numbers, on the CPU; `draw` numbers independent sequences within it."""

    key: int  # as uint64
    step: int

    def uniforms(self, count: int, draw: int = 0) -> Tensor:
        """float64 [count] in (0, 1), never either end."""
        out = np.empty(count)
        fill_uniforms(np.uint64(self.key), np.uint64(self.step), np.uint64(draw), out)
        return torch.from_numpy(out)

    def integers(self, high: int, count: int, draw: int = 0) -> Tensor:
        """int64 [count] in 0 .. high-1, with replacement. `high` up to 2^52."""
        return (self.uniforms(count, draw) * high).long().clamp_(max=high - 1)

    def distinct(self, high: int, count: int, draw: int = 0) -> Tensor:
        """int64 [count] in 0 .. high-1, without replacement, in no order; count <= high."""
        out = np.empty(count, np.int64)
        fill_distinct(np.uint64(self.key), np.uint64(self.step), np.uint64(draw), high, out)
        return torch.from_numpy(out)

    def distinct_outside(self, excluded: Tensor, high: int, count: int, draw: int = 0) -> Tensor:
        """int64 [count] of 0 .. high-1 that are not in `excluded` (ascending, each once).

        Without replacement, each set equally likely; O(count log |excluded|). At most as many as
        there are.
        """
        excluded = excluded.cpu()
        ranks = self.distinct(high - len(excluded), count, draw)
        # The r-th id outside is r plus the excluded ids below it.
        gaps = excluded - torch.arange(len(excluded))
        return ranks + torch.searchsorted(gaps, ranks, right=True)


class Randomness:
    """A head's source of steps; its state is `seed` and `step`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.step = 0

    def next(self) -> Step:
        """The numbers of the next step, for this process."""
        step = Step((self.seed + _rank() * _GOLDEN) % _WORD, self.step)
        self.step += 1
        return step


def processes() -> int:
    """How many train together."""
    return torch.distributed.get_world_size() if _together() else 1


def _rank() -> int:
    return torch.distributed.get_rank() if _together() else 0


def _together() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
