"""Independent draws from a fixed distribution over the classes.

Bengio and Senecal 2008, Adaptive Importance Sampling; Jean et al. 2015.
"""

from dataclasses import dataclass, field
from math import log

import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import (
    Candidates,
    RaggedCandidates,
    SharedCandidates,
    StepRng,
    Targets,
)
from logitsieve.training.autograd.classes import ClassWeights
from logitsieve.training.proposals.proposal import Proposal
from logitsieve.utils.options import option


@dataclass(kw_only=True, eq=False)
class FrequencyProposal(Proposal):
    """m draws from q [V], in proportion to positive `weights` [V].

    A shared set has log-weights -log(m q_j); a row's targets are masked, but m includes them. A set
    for a row with one target t is drawn from q_j / (1 - q_t), with log-weights -log(m q_j / (1 -
    q_t)).
    """

    weights: Tensor = field(kw_only=False)
    n_sampled: int = option(100, "m, the number of draws.", 1)
    per_row: bool = option(False, "A set for each row.")

    def start(self, classes: ClassWeights, seed: int) -> None:
        super().start(classes, seed)
        q = positive("weights", self.weights, self.n_classes)
        q = q / q.sum()
        self.log_q, self.sums = q.log(), q.cumsum(0)

    def draw(self, uniforms: Tensor) -> Tensor:
        return torch.searchsorted(self.sums, uniforms, right=True).clamp_(max=len(self.sums) - 1)

    def shared(self, rng: StepRng) -> SharedCandidates:
        ids = self.draw(rng.uniforms(self.n_sampled))
        return SharedCandidates(ids, -log(self.n_sampled) - self.log_q[ids])

    def propose(self, hidden_BD: Tensor, targets: Targets, rng: StepRng) -> Candidates:
        if not self.per_row:
            return self.shared(rng)
        m = self.n_sampled
        uniforms_BM = rng.uniforms(targets.count * m).view(-1, m)
        offsets = torch.arange(0, targets.count * m + 1, m)
        if not targets.single:
            ids_E = self.draw(uniforms_BM.view(-1))
            return RaggedCandidates(offsets, ids_E, -log(m) - self.log_q[ids_E])
        target_B1 = targets.classes.cpu()[:, None]
        q_B1 = self.log_q[target_B1].exp()
        # Uniform numbers skip the target's interval of the cumulative sums.
        skipped_BM = uniforms_BM * (1 - q_B1)
        before_B1 = self.sums[target_B1] - q_B1
        ids_E = self.draw((skipped_BM + q_B1 * (skipped_BM >= before_B1)).view(-1))
        log_weights_BM = (1 - q_B1).log() - log(m) - self.log_q[ids_E].view(-1, m)
        return RaggedCandidates(offsets, ids_E, log_weights_BM.view(-1))


def uniform_weights(n_classes: int, class_counts: Tensor | None = None) -> Tensor:
    """Return ones [V]."""
    return torch.ones(n_classes, dtype=torch.float64)


def log_uniform_weights(n_classes: int, class_counts: Tensor | None = None) -> Tensor:
    """Return TensorFlow's weights [V], log((r + 2) / (r + 1)); r >= 0 is the rank, or the id."""
    ranks = torch.arange(n_classes, dtype=torch.float64)
    if class_counts is not None:
        ranks = torch.empty_like(ranks).scatter_(0, by_frequency(n_classes, class_counts), ranks)
    return (1 / (ranks + 1)).log1p()


def unigram_weights(n_classes: int, class_counts: Tensor | None = None) -> Tensor:
    """Return class_counts [V]. InvalidRequest unless all are given and positive."""
    if class_counts is None:
        raise InvalidRequest("class_counts", None, f"positive numbers [{n_classes}]")
    return positive("class_counts", class_counts, n_classes)


def by_frequency(n_classes: int, class_counts: Tensor) -> Tensor:
    """Return ids [V], the most frequent first, then by id."""
    counts = positive("class_counts", class_counts, n_classes)
    return counts.argsort(descending=True, stable=True)


def positive(name: str, numbers: Tensor, n_classes: int) -> Tensor:
    """Return numbers [V] as float64 on the CPU. InvalidRequest unless all are positive."""
    numbers = torch.as_tensor(numbers, dtype=torch.float64).cpu()
    if numbers.shape != (n_classes,):
        raise InvalidRequest(name, f"shape {tuple(numbers.shape)}", f"[{n_classes}]")
    if not bool(((numbers > 0) & numbers.isfinite()).all()):
        raise InvalidRequest(name, float(numbers.min()), "positive numbers")
    return numbers
