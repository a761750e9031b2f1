"""Noise-contrastive estimation: a classifier that tells classes of the data from noise.

Gutmann and Hyvarinen 2010 (AISTATS); Mnih and Teh 2012, A Fast and Simple Algorithm for Training
Neural Probabilistic Language Models, whose Z is fixed at 1.
Shape letters: B rows, D hidden size, V classes, m draws, C different ones.
"""

from __future__ import annotations

from math import log
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from logitsieve.training.autograd.batch import SharedCandidates, Targets
from logitsieve.training.autograd.shared import merge_classes, merged_logits
from logitsieve.training.losses.frequency import (
    ClassDistribution,
    DistributionLoss,
    log_uniform_distribution,
)
from logitsieve.training.losses.sampled import DrawOptions


class NCE(DistributionLoss):
    """-mean log s(y_t) - sum over draws of log(1 - s(y_j)), y = x - log(m q), s the sigmoid.

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
