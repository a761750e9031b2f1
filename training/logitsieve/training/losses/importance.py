"""Plain importance sampling of Z: "IS" of LSH Softmax (section 6.1).

Bengio and Senecal 2003, Quick Training of Probabilistic Neural Nets by Importance Sampling.
Shape letters: B rows, D hidden size, V classes, m draws.
"""

from __future__ import annotations

from math import log
from typing import Unpack

from torch import Tensor

from logitsieve.training.autograd.gather import plan_logits
from logitsieve.training.autograd.seeded import SeededLoss
from logitsieve.training.autograd.shared import make_plan
from logitsieve.training.losses.loss import Common, at_least
from logitsieve.training.losses.proposal import Shared
from logitsieve.training.losses.targets import Targets
from logitsieve.training.structures.fixed import uniform_law, unigram_law


class ImportanceSoftmax(SeededLoss):
    """-x_t + log((1 / m) sum over draws of e^{x_j} / q_j); q of class_counts [V], or uniform.

    The target is not put in, so the estimated probability of the target can exceed 1 and the loss
    be negative: a baseline, of which more draws are the only cure.
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
            uniform_law(n_classes) if class_counts is None else unigram_law(class_counts, n_classes)
        )

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        """The estimated losses [B]."""
        ids = self.fixed.draw(self.random.next().uniforms(self.n_sampled))
        drawn = Shared(ids, -log(self.n_sampled) - self.fixed.log_q[ids])
        plan = make_plan(targets, drawn)
        x_BC, x_P = plan_logits(hidden_BD, self.classes, self.law, plan, targets)
        mean_B = targets.sums(x_P * targets.shares(x_P.dtype))
        return (x_BC + plan.log_weights.to(x_BC.dtype)).logsumexp(1) - mean_B
