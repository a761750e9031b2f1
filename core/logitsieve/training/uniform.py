"""Uniform negatives, corrected: "NS" of the papers that compare with it."""

from __future__ import annotations

from typing import Unpack

import torch

from logitsieve.training.static import StaticOptions, StaticSoftmax


class UniformSoftmax(StaticSoftmax):
    """m draws from q = 1 / V: log-weight log(V / m)."""

    def __init__(self, in_features: int, n_classes: int, **options: Unpack[StaticOptions]) -> None:
        q = torch.ones(n_classes, dtype=torch.float64)
        super().__init__(in_features, n_classes, q, **options)
