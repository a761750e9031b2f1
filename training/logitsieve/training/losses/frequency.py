"""Losses whose negatives come from a fixed distribution over the classes, whatever the context.

Sampled softmax: Bengio and Senecal 2008, Adaptive Importance Sampling (IEEE Trans. Neural Networks
19(4)); Jean et al. 2015, On Using Very Large Target Vocabulary. Plain importance sampling: Bengio
and Senecal 2003, Quick Training of Probabilistic Neural Nets by Importance Sampling. Draws are
independent: some classes are drawn twice.

Shape letters: B rows, D hidden size, V classes, m draws, C different ones, E = B m of all rows.
"""

from __future__ import annotations

from math import log
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import RaggedCandidates, SharedCandidates, Targets
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.autograd.shared import merge_classes, merged_logits
from logitsieve.training.losses.sampled import DrawnLoss, DrawOptions, SampledSoftmax


class ClassDistribution:
    """Probabilities q [V] in proportion to `weights` [V], all positive; float64, on the CPU.

    log_q [V]; sums [V] are the distribution function.
    """

    def __init__(self, weights: Tensor) -> None:
        q = weights / weights.sum()
        self.log_q = q.log()
        self.sums = q.cumsum(0)

    def draw(self, uniforms: Tensor) -> Tensor:
        """Ids [N] from uniforms [N] in (0, 1), by inverting the distribution function."""
        ids = torch.searchsorted(self.sums, uniforms, right=True)
        return ids.clamp_(max=len(self.sums) - 1)


def uniform_distribution(n_classes: int) -> ClassDistribution:
    """q = 1 / V."""
    return ClassDistribution(torch.ones(n_classes, dtype=torch.float64))


def unigram_distribution(class_counts: Tensor, n_classes: int) -> ClassDistribution:
    """q in proportion to class_counts [V], which are positive."""
    return ClassDistribution(read_counts(class_counts, n_classes))


def log_uniform_distribution(class_counts: Tensor | None, n_classes: int) -> ClassDistribution:
    """q = log((r + 2) / (r + 1)) / log(V + 1), r the rank from 0, the most frequent first.

    Without class_counts ids are ranks.
    """
    ranks = torch.arange(n_classes, dtype=torch.float64)
    if class_counts is not None:
        order = by_frequency(class_counts, n_classes)
        ranks = torch.empty_like(ranks).scatter_(0, order, ranks)
    return ClassDistribution((1 / (ranks + 1)).log1p())


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


class FrequencyOptions(DrawOptions, total=False):
    """per_row: a set for each row."""

    per_row: bool


class FrequencySoftmax(DrawnLoss, SampledSoftmax):
    """m draws from fixed probabilities q, one set for the batch or, with `per_row`, one a row.

    Shared: log-weight -log(m q_j), the target masked, m counting the masked draws. Per row, and one
    target: draws from q_j / (1 - q_t), log-weight -log(m q_j / (1 - q_t)).
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        distribution: ClassDistribution,
        *,
        per_row: bool = False,
        **options: Unpack[DrawOptions],
    ) -> None:
        super().__init__(in_features, n_classes, **options)
        self.per_row, self.distribution = per_row, distribution

    def propose(
        self, hidden_BD: Tensor, targets: Targets, random: StepRng
    ) -> SharedCandidates | RaggedCandidates:
        if self.per_row:
            return self._propose_per_row(targets, random)
        ids = self.distribution.draw(random.uniforms(self.n_sampled))
        return SharedCandidates(ids, -log(self.n_sampled) - self.distribution.log_q[ids])

    def _propose_per_row(self, targets: Targets, random: StepRng) -> RaggedCandidates:
        m = self.n_sampled
        uniforms_BM = random.uniforms(targets.count * m).view(-1, m)
        offsets = torch.arange(0, targets.count * m + 1, m)
        if not targets.single:
            ids_E = self.distribution.draw(uniforms_BM.view(-1))
            return RaggedCandidates(offsets, ids_E, -log(m) - self.distribution.log_q[ids_E])
        target_B1 = targets.classes.cpu()[:, None]
        q_B1 = self.distribution.log_q[target_B1].exp()
        # Uniforms over all but the target's own stretch: those above its start skip it.
        skipped_BM = uniforms_BM * (1 - q_B1)
        before_B1 = self.distribution.sums[target_B1] - q_B1
        ids_E = self.distribution.draw((skipped_BM + q_B1 * (skipped_BM >= before_B1)).view(-1))
        rest_B1 = (1 - q_B1).log()
        log_weights_BM = rest_B1 - log(m) - self.distribution.log_q[ids_E].view(-1, m)
        return RaggedCandidates(offsets, ids_E, log_weights_BM.view(-1))


class UniformSoftmax(FrequencySoftmax):
    """Uniform negatives, "NS" in other papers: q = 1 / V, log-weight log(V / m)."""

    def __init__(
        self, in_features: int, n_classes: int, **options: Unpack[FrequencyOptions]
    ) -> None:
        super().__init__(in_features, n_classes, uniform_distribution(n_classes), **options)


class LogUniformSoftmax(FrequencySoftmax):
    """Negatives from q = log((r + 2) / (r + 1)) / log(V + 1), r the rank from 0.

    As TensorFlow's log_uniform_candidate_sampler. Ranks are those of class_counts [V], the most
    frequent first; without them ids are ranks.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        class_counts: Tensor | None = None,
        **options: Unpack[FrequencyOptions],
    ) -> None:
        distribution = log_uniform_distribution(class_counts, n_classes)
        super().__init__(in_features, n_classes, distribution, **options)


class UnigramSoftmax(FrequencySoftmax):
    """Negatives by frequency: q in proportion to class_counts [V], which are positive."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        class_counts: Tensor,
        **options: Unpack[FrequencyOptions],
    ) -> None:
        distribution = unigram_distribution(class_counts, n_classes)
        super().__init__(in_features, n_classes, distribution, **options)


class DistributionLoss(DrawnLoss):
    """m draws for the batch from class_counts [V], or without them from `without_counts`."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        class_counts: Tensor | None = None,
        **options: Unpack[DrawOptions],
    ) -> None:
        super().__init__(in_features, n_classes, **options)
        self.distribution = (
            self.without_counts(n_classes)
            if class_counts is None
            else unigram_distribution(class_counts, n_classes)
        )

    @staticmethod
    def without_counts(n_classes: int) -> ClassDistribution:
        """The distribution where no frequencies are given."""
        return uniform_distribution(n_classes)

    def draw_ids(self) -> Tensor:
        """The ids [m] of the next step."""
        return self.distribution.draw(self.random.next().uniforms(self.n_sampled))


class ImportanceSoftmax(DistributionLoss):
    """-x_t + log((1 / m) sum over draws of e^{x_j} / q_j); q of class_counts [V], or uniform.

    "IS" of Levy, Chen, Ermon 2018, section 6.1. The target is not added to the draws, so its
    estimated probability can exceed 1 and the loss be negative. A baseline: only more draws help.
    """

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        ids = self.draw_ids()
        drawn = SharedCandidates(ids, -log(self.n_sampled) - self.distribution.log_q[ids])
        merged = merge_classes(targets, drawn)
        x_BC, x_P = merged_logits(hidden_BD, self.classes, self.logit_form, merged, targets)
        mean_B = targets.sums(x_P * targets.shares(x_P.dtype))
        return (x_BC + merged.log_weights.to(x_BC.dtype)).logsumexp(1) - mean_B


class NCE(DistributionLoss):
    """-mean log s(y_t) - sum over draws of log(1 - s(y_j)), y = x - log(m q), s the sigmoid.

    Noise-contrastive estimation, a classifier that tells classes of the data from noise: Gutmann
    and Hyvarinen 2010 (AISTATS); Mnih and Teh 2012, A Fast and Simple Algorithm for Training Neural
    Probabilistic Language Models, whose Z is fixed at 1.

    m draws of noise for the batch, from the frequencies class_counts [V], or log-uniform by id. The
    noise may be the target. Biases start at -log V, so that Z starts near 1, as assumed.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        class_counts: Tensor | None = None,
        **options: Unpack[DrawOptions],
    ) -> None:
        super().__init__(in_features, n_classes, class_counts, **options)
        if self.classes.bias is not None:
            nn.init.constant_(self.classes.bias, -log(n_classes))

    @staticmethod
    def without_counts(n_classes: int) -> ClassDistribution:
        return log_uniform_distribution(None, n_classes)

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        ids = self.draw_ids()
        merged = merge_classes(
            targets, SharedCandidates(ids, torch.zeros(len(ids), dtype=torch.float64))
        )
        x_BC, x_P = merged_logits(hidden_BD, self.classes, self.logit_form, merged, targets)
        times_C = merged.log_weights.exp().to(x_BC.dtype)
        log_mq_U = (log(self.n_sampled) + self.distribution.log_q[merged.ids.cpu()]).to(x_BC)
        noise_B = softplus(x_BC - log_mq_U[: len(times_C)]) @ times_C
        data_P = softplus(log_mq_U[merged.slots] - x_P)
        return targets.sums(data_P * targets.shares(x_P.dtype)) + noise_B
