"""Uniform negatives, corrected: "NS" of the papers that compare with it."""

from __future__ import annotations

from typing import Unpack

from logitsieve.training.losses.static import StaticOptions, StaticSoftmax
from logitsieve.training.structures.fixed import uniform_law


class UniformSoftmax(StaticSoftmax):
    """m draws from q = 1 / V: log-weight log(V / m)."""

    def __init__(self, in_features: int, n_classes: int, **options: Unpack[StaticOptions]) -> None:
        super().__init__(in_features, n_classes, uniform_law(n_classes), **options)
