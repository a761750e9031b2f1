"""Fixed probabilities of the classes: what is drawn from without looking at the context."""

from __future__ import annotations

import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest


class FixedLaw:
    """Probabilities q [V] in proportion to `weights` [V], all positive; float64, on the CPU.

    log_q [V]; sums [V] are the distribution function.
    """

    def __init__(self, weights: Tensor) -> None:
        q = weights / weights.sum()
        self.log_q = q.log()
        self.sums = q.cumsum(0)

    def draw(self, uniforms: Tensor) -> Tensor:
        """Numbers in (0, 1) [N] -> ids [N] by the inverse of the distribution function."""
        ids = torch.searchsorted(self.sums, uniforms, right=True)
        return ids.clamp_(max=len(self.sums) - 1)


def uniform_law(n_classes: int) -> FixedLaw:
    """q = 1 / V."""
    return FixedLaw(torch.ones(n_classes, dtype=torch.float64))


def unigram_law(class_counts: Tensor, n_classes: int) -> FixedLaw:
    """q in proportion to class_counts [V], which are positive."""
    return FixedLaw(read_counts(class_counts, n_classes))


def log_uniform_law(class_counts: Tensor | None, n_classes: int) -> FixedLaw:
    """q = log((r + 2) / (r + 1)) / log(V + 1), r the rank from 0, the most frequent first.

    Without class_counts ids are ranks.
    """
    ranks = torch.arange(n_classes, dtype=torch.float64)
    if class_counts is not None:
        order = by_frequency(class_counts, n_classes)
        ranks = torch.empty_like(ranks).scatter_(0, order, ranks)
    return FixedLaw((1 / (ranks + 1)).log1p())


def by_frequency(class_counts: Tensor, n_classes: int) -> Tensor:
    """Ids [V], the most frequent first; of equals, the lower id."""
    return read_counts(class_counts, n_classes).argsort(descending=True, stable=True)


def read_counts(class_counts: Tensor, n_classes: int) -> Tensor:
    """class_counts [V] as float64 on the CPU; raises InvalidRequest unless all are positive."""
    counts = torch.as_tensor(class_counts, dtype=torch.float64).cpu()
    if counts.shape != (n_classes,):
        raise InvalidRequest("class_counts", f"shape {tuple(counts.shape)}", f"[{n_classes}]")
    if not bool(((counts > 0) & counts.isfinite()).all()):
        raise InvalidRequest("class_counts", float(counts.min()), "positive numbers")
    return counts
