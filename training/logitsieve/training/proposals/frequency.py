"""Negatives from a fixed distribution over the classes, whatever the context.

Bengio and Senecal 2008, Adaptive Importance Sampling; Jean et al. 2015.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log

import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import SharedCandidates, Targets
from logitsieve.training.autograd.classes import ClassWeights, LogitForm
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.proposals.proposal import Proposal
from logitsieve.utils.options import option


@dataclass(kw_only=True, eq=False)
class FrequencyProposal(Proposal):
    """m draws for the batch from q [V], in proportion to positive `weights` [V].

    The log-weight is -log(m q_j); m counts the draws that are masked as targets.
    """

    weights: Tensor = field(kw_only=False)
    n_sampled: int = option(100, "m, the number of draws.", 1)

    def start(self, classes: ClassWeights, form: LogitForm, seed: int) -> None:
        super().start(classes, form, seed)
        q = positive("weights", self.weights, self.n_classes)
        q = q / q.sum()
        self.log_q, self.sums = q.log(), q.cumsum(0)  # float64, on the CPU

    def propose(self, hidden_BD: Tensor, targets: Targets, rng: StepRng) -> SharedCandidates:
        ids = torch.searchsorted(self.sums, rng.uniforms(self.n_sampled), right=True)
        ids.clamp_(max=len(self.sums) - 1)
        return SharedCandidates(ids, -log(self.n_sampled) - self.log_q[ids])


def uniform_weights(n_classes: int, class_counts: Tensor | None = None) -> Tensor:
    """Return equal weights [V]."""
    return torch.ones(n_classes, dtype=torch.float64)


def log_uniform_weights(n_classes: int, class_counts: Tensor | None = None) -> Tensor:
    """Return TensorFlow's weights [V], log((r + 2) / (r + 1)), r the rank, or the id, from 0."""
    ranks = torch.arange(n_classes, dtype=torch.float64)
    if class_counts is not None:
        ranks = torch.empty_like(ranks).scatter_(0, by_frequency(n_classes, class_counts), ranks)
    return (1 / (ranks + 1)).log1p()


def unigram_weights(n_classes: int, class_counts: Tensor | None = None) -> Tensor:
    """Return class_counts [V]; InvalidRequest unless all are given and positive."""
    if class_counts is None:
        raise InvalidRequest("class_counts", None, f"positive numbers [{n_classes}]")
    return positive("class_counts", class_counts, n_classes)


def by_frequency(n_classes: int, class_counts: Tensor) -> Tensor:
    """Return ids [V], the most frequent first; of equals, the lower id."""
    counts = positive("class_counts", class_counts, n_classes)
    return counts.argsort(descending=True, stable=True)


def positive(name: str, numbers: Tensor, n_classes: int) -> Tensor:
    """Return numbers [V] as float64 on the CPU; InvalidRequest unless all are positive."""
    numbers = torch.as_tensor(numbers, dtype=torch.float64).cpu()
    if numbers.shape != (n_classes,):
        raise InvalidRequest(name, f"shape {tuple(numbers.shape)}", f"[{n_classes}]")
    if not bool(((numbers > 0) & numbers.isfinite()).all()):
        raise InvalidRequest(name, float(numbers.min()), "positive numbers")
    return numbers
