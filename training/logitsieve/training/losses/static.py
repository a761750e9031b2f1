"""Sampled softmax whose negatives do not depend on the context.

Bengio and Senecal 2008, Adaptive Importance Sampling (IEEE Trans. Neural Networks 19(4)); Jean et
al. 2015, On Using Very Large Target Vocabulary. Draws are independent: some are drawn twice.
Shape letters: B rows, V classes, m draws, E = B m draws of all rows.
"""

from __future__ import annotations

from math import log
from typing import Unpack

import torch
from torch import Tensor

from logitsieve.training.autograd.rng import Step
from logitsieve.training.losses.loss import Common, at_least
from logitsieve.training.losses.proposal import Ragged, Shared
from logitsieve.training.losses.sampled import SampledSoftmax
from logitsieve.training.losses.targets import Targets
from logitsieve.training.structures.fixed import FixedLaw


class StaticOptions(Common, total=False):
    """n_sampled: m. per_row: a set for each row. seed: of the draws."""

    n_sampled: int
    per_row: bool
    seed: int


class StaticSoftmax(SampledSoftmax):
    """m draws from fixed probabilities q, one set for the batch or, with `per_row`, one a row.

    Shared: log-weight -log(m q_j), the target masked, m counting the masked draws. Per row, and one
    target: draws from q_j / (1 - q_t), log-weight -log(m q_j / (1 - q_t)).
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        fixed: FixedLaw,
        *,
        n_sampled: int = 100,
        per_row: bool = False,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(in_features, n_classes, seed=seed, **common)
        at_least("n_sampled", n_sampled, 1)
        self.n_sampled = n_sampled
        self.per_row = per_row
        self.fixed = fixed

    def propose(self, hidden_BD: Tensor, targets: Targets, random: Step) -> Shared | Ragged:
        """See proposal.Proposal."""
        if self.per_row:
            return self._for_each(targets, random)
        ids = self.fixed.draw(random.uniforms(self.n_sampled))
        return Shared(ids, -log(self.n_sampled) - self.fixed.log_q[ids])

    def _for_each(self, targets: Targets, random: Step) -> Ragged:
        m = self.n_sampled
        uniforms_BM = random.uniforms(targets.count * m).view(-1, m)
        offsets = torch.arange(0, targets.count * m + 1, m)
        if not targets.single:
            ids_E = self.fixed.draw(uniforms_BM.view(-1))
            return Ragged(offsets, ids_E, -log(m) - self.fixed.log_q[ids_E])
        target_B1 = targets.classes.cpu()[:, None]
        q_B1 = self.fixed.log_q[target_B1].exp()
        # Numbers over the whole but the target's own part: those above it step over it.
        reached_BM = uniforms_BM * (1 - q_B1)
        before_B1 = self.fixed.sums[target_B1] - q_B1
        ids_E = self.fixed.draw((reached_BM + q_B1 * (reached_BM >= before_B1)).view(-1))
        rest_B1 = (1 - q_B1).log()
        log_weights_BM = rest_B1 - log(m) - self.fixed.log_q[ids_E].view(-1, m)
        return Ragged(offsets, ids_E, log_weights_BM.view(-1))
