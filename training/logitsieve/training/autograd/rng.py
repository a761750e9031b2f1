"""Random numbers of training steps by counter: a run's state is the seed and the step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

LARGEST_SEED = 2**31 - 1  # faiss takes no larger one
_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15  # odd: ranks get keys that differ


@dataclass(frozen=True)
class StepRng:
    """Random numbers of one step, on the CPU; `draw` numbers its independent sequences."""

    key: int  # as uint64
    step: int

    def uniforms(self, count: int, draw: int = 0) -> Tensor:
        """float64 [count] in [0, 1)."""
        bits = np.random.Philox(key=self.key, counter=[0, 0, draw, self.step])
        return torch.from_numpy(np.random.Generator(bits).random(count))


class Randomness:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.step = 0

    def next(self) -> StepRng:
        step = StepRng((self.seed + _rank() * _GOLDEN) % _WORD, self.step)
        self.step += 1
        return step


def processes() -> int:
    return torch.distributed.get_world_size() if _together() else 1


def _rank() -> int:
    return torch.distributed.get_rank() if _together() else 0


def _together() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
