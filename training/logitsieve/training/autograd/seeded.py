"""A loss that draws: its random numbers are part of its state."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from logitsieve.training.autograd.classes import ClassWeights
from logitsieve.training.autograd.rng import LARGEST_SEED, Randomness
from logitsieve.training.losses.loss import Common, SoftmaxLoss, at_least


class SeededLoss(SoftmaxLoss):
    """A SoftmaxLoss with `random`, whose seed and number of steps made are saved with it."""

    classes: ClassWeights

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        seed: int = 0,
        absolute: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(in_features, n_classes, absolute=absolute, **common)
        at_least("seed", seed, 0, LARGEST_SEED)
        self.random = Randomness(seed)

    def _nothing(self, prepared: Tensor, shape: torch.Size) -> Tensor:
        """Counted as a step: processes stay at the same one, whichever had no targets in it."""
        self.random.next()
        return super()._nothing(prepared, shape)

    def get_extra_state(self) -> dict[str, Any]:
        """Tensors, numbers and dicts of them, beside the parameters."""
        return {"seed": self.random.seed, "step": self.random.step}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from where the other run was."""
        self.random.seed, self.random.step = state["seed"], state["step"]
