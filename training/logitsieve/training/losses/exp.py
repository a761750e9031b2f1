"""EXP: negatives from the true softmax, the best proposal there can be.

Rawat et al. 2019, Sampled Softmax with Random Fourier Features, section 2; Bengio and Senecal 2008.
Shape letters: B rows, D hidden size, V classes, m draws, b rows at once.
"""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

from logitsieve.training.autograd.batch import RaggedCandidates, Targets
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.losses.sampled import DrawnLoss, SampledSoftmax


class ExpSoftmax(DrawnLoss, SampledSoftmax):
    """m draws a row from the softmax over the classes that are no targets of it. O(V) a row.

    Each draw's e^{x_j} / q_j is the same number, so the estimate of Z is Z and the loss is the full
    softmax's, whatever is drawn; the gradient equals the full one in expectation.
    """

    chunk = 1 << 22  # logits at once

    @torch.no_grad()
    def propose(self, hidden_BD: Tensor, targets: Targets, random: StepRng) -> RaggedCandidates:
        m = self.n_sampled
        uniforms_BM = random.uniforms(targets.count * m).view(-1, m).to(hidden_BD.device)
        step = max(self.chunk // self.n_classes, 1)
        parts = [
            self._draw(hidden_BD[i:last], targets.slice(i, last), uniforms_BM[i:last])
            for i in range(0, targets.count, step)
            for last in [min(i + step, targets.count)]
        ]
        offsets = torch.arange(0, targets.count * m + 1, m)
        ids = torch.cat([part[0].view(-1) for part in parts])
        return RaggedCandidates(offsets, ids, torch.cat([part[1].view(-1) for part in parts]))

    def _draw(
        self, hidden_bD: Tensor, targets: Targets, uniforms_bM: Tensor
    ) -> tuple[Tensor, Tensor]:
        x_bV = self.full_logits(hidden_bD).double()
        x_bV[targets.rows, targets.classes] = -torch.inf
        log_z_b1 = x_bV.logsumexp(1, keepdim=True)
        sums_bV = (x_bV - log_z_b1).exp_().cumsum(1)
        ids_bM = torch.searchsorted(sums_bV, uniforms_bM * sums_bV[:, -1:], right=True)
        ids_bM.clamp_(max=self.n_classes - 1)
        return ids_bM, log_z_b1 - x_bV.gather(1, ids_bM) - log(self.n_sampled)
