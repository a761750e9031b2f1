"""Log-uniform negatives: as TensorFlow's log_uniform_candidate_sampler draws them, corrected."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from logitsieve.training.losses.static import StaticOptions, StaticSoftmax
from logitsieve.training.structures.fixed import log_uniform_law


class LogUniformSoftmax(StaticSoftmax):
    """m draws from q = log((r + 2) / (r + 1)) / log(V + 1), r the rank from 0.

    Ranks are those of class_counts [V], the most frequent first; without them ids are ranks.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        class_counts: Tensor | None = None,
        **options: Unpack[StaticOptions],
    ) -> None:
        fixed = log_uniform_law(class_counts, n_classes)
        super().__init__(in_features, n_classes, fixed, **options)
