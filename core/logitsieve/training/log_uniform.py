"""Log-uniform negatives: as TensorFlow's log_uniform_candidate_sampler draws them."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from logitsieve.training.static import StaticOptions, StaticSoftmax, read_counts


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
        ranks = torch.arange(n_classes, dtype=torch.float64)
        if class_counts is not None:
            order = read_counts(class_counts, n_classes).argsort(descending=True, stable=True)
            ranks = torch.empty_like(ranks).scatter_(0, order, ranks)
        super().__init__(in_features, n_classes, (1 / (ranks + 1)).log1p(), **options)
