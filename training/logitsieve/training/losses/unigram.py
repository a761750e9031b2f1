"""Negatives as often as they occur: Jean et al. 2015 ("BIS" of LSH Softmax), corrected."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from logitsieve.training.losses.static import StaticOptions, StaticSoftmax
from logitsieve.training.structures.fixed import unigram_law


class UnigramSoftmax(StaticSoftmax):
    """m draws from q in proportion to class_counts [V], which are positive."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        class_counts: Tensor,
        **options: Unpack[StaticOptions],
    ) -> None:
        fixed = unigram_law(class_counts, n_classes)
        super().__init__(in_features, n_classes, fixed, **options)
