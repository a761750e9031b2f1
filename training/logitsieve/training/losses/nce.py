"""Noise-contrastive estimation: is this class from the data, or from the noise?

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

from logitsieve.training.autograd.gather import plan_logits
from logitsieve.training.autograd.seeded import SeededLoss
from logitsieve.training.autograd.shared import make_plan
from logitsieve.training.losses.loss import Common, at_least
from logitsieve.training.losses.proposal import Shared
from logitsieve.training.losses.targets import Targets
from logitsieve.training.structures.fixed import log_uniform_law, unigram_law


class NCE(SeededLoss):
    """-mean log s(y_t) - sum over draws of log(1 - s(y_j)), y = x - log(m q), s the sigmoid.

    m draws of noise for the batch, from the frequencies class_counts [V], or log-uniform by id. The
    noise may be the target. Biases start at -log V, so that Z starts near the 1 that is assumed.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        class_counts: Tensor | None = None,
        *,
        n_sampled: int = 100,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(in_features, n_classes, seed=seed, **common)
        at_least("n_sampled", n_sampled, 1)
        self.n_sampled = n_sampled
        self.fixed = (
            log_uniform_law(None, n_classes)
            if class_counts is None
            else unigram_law(class_counts, n_classes)
        )
        if self.classes.bias is not None:
            nn.init.constant_(self.classes.bias, -log(n_classes))

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        """The binary losses of each row [B]."""
        ids = self.fixed.draw(self.random.next().uniforms(self.n_sampled))
        plan = make_plan(targets, Shared(ids, torch.zeros(len(ids), dtype=torch.float64)))
        x_BC, x_P = plan_logits(hidden_BD, self.classes, self.law, plan, targets)
        times_C = plan.log_weights.exp().to(x_BC.dtype)
        log_mq_U = (log(self.n_sampled) + self.fixed.log_q[plan.ids.cpu()]).to(x_BC)
        noise_B = softplus(x_BC - log_mq_U[: len(times_C)]) @ times_C
        data_P = softplus(log_mq_U[plan.slots] - x_P)
        return targets.sums(data_P * targets.shares(x_P.dtype)) + noise_B
