"""Draws of classes within leaves of the kernel tree, for a whole batch: by its mean probabilities.

Within a leaf, class j is drawn with a probability in proportion to

    sum over the rows b of e^{x_bj} / Z^_b,

the batch's own softmax within the leaf if Z^_b is row b's normaliser. Any Z^_b gives a valid
distribution, as long as it does not depend on what is drawn within: given the leaves, draws within
them are independent, and each candidate counts with the probability it really had. Z^_b is the
importance-sampled sum over some of the drawn leaves, plus the target's e^x, so that a row that is
sure of itself does not count for more than it should.

Shape letters: B rows, D hidden size, L' different leaves, n classes a leaf, M draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from logitsieve.kernels.simd.lanes import cpu_has
from logitsieve.training.autograd.batch import Targets
from logitsieve.training.autograd.classes import LogitForm, read_touched

ROWS_AT_ONCE = 2048  # rows of W whose logits for the whole batch are held at a time
LEAVES_OF_ESTIMATE = 32  # leaves from which Z^ is estimated
BFLOAT16_IS_FAST = cpu_has("avx512bf16")  # other CPUs multiply float32 faster
LARGEST_LOGIT = 60.0  # e^60 and e^-60 bound the terms: float32 holds sums of them


@dataclass(frozen=True)
class LeafSoftmax:
    """Distributions within leaves, from prepared hidden [B, D], targets and current weights."""

    hidden: Tensor
    targets: Targets
    weight: Tensor
    logit_form: LogitForm

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the distribution, which need not be exact: draws count as they were made."""
        fast = BFLOAT16_IS_FAST and self.hidden.device.type == "cpu"
        single = self.hidden.dtype == torch.float32
        return torch.bfloat16 if fast and single else self.hidden.dtype

    def probabilities(self, members: Tensor, leaf_of_draw: Tensor, log_q: Tensor) -> Tensor:
        """float64 [L', n]: the distribution within each leaf, of members [L', n], V for none.

        leaf_of_draw [M]: the place in `members` of each draw's leaf; log_q [M]: of that leaf.
        """
        log_z_B = self._log_normalisers(members, leaf_of_draw, log_q)
        n = members.shape[1]
        parts = [
            self._logits(part, log_z_B)
            .clamp_(-LARGEST_LOGIT, LARGEST_LOGIT)
            .exp_()
            .sum(1, dtype=torch.float64)
            for part in torch.split(members, max(ROWS_AT_ONCE // n, 1))
        ]
        masses = torch.cat(parts).view(-1, n)
        masses.masked_fill_(members == len(self.weight), 0.0)
        return masses / masses.sum(1, keepdim=True)

    def _log_normalisers(self, members: Tensor, leaf_of_draw: Tensor, log_q: Tensor) -> Tensor:
        every = -(-len(log_q) // LEAVES_OF_ESTIMATE)
        leaves, log_q = leaf_of_draw[::every], log_q[::every]
        some = members[leaves]
        zeros_B = self.hidden.new_zeros(len(self.hidden))
        x_B = self._logits(some, zeros_B).to(self.hidden.dtype).view(*some.shape, -1)
        x_B.masked_fill_((some == len(self.weight))[..., None], -torch.inf)
        x_B -= (log_q + torch.tensor(float(len(log_q))).log()).to(x_B)[:, None, None]
        x_P = (self.targets.of(self.hidden) * self._read(self.targets.classes)).sum(-1)
        largest_B = self.targets.most(x_P.abs_() if self.logit_form.absolute else x_P)
        return torch.logaddexp(x_B.flatten(0, 1).logsumexp(0), largest_B)

    def _logits(self, members: Tensor, log_z_B: Tensor) -> Tensor:
        """x - log Z^ [L' n, B] in precision `dtype`; any number where a place has no class."""
        ids = members.reshape(-1).clamp(max=len(self.weight) - 1)
        rows, hidden_DB = self._read(ids).to(self.dtype), self.hidden.T.to(self.dtype)
        if self.logit_form.absolute:
            return (rows @ hidden_DB).abs_().sub_(log_z_B.to(self.dtype))
        return torch.addmm(-log_z_B.to(self.dtype), rows, hidden_DB)

    def _read(self, ids: Tensor) -> Tensor:
        return read_touched(self.weight, None, ids, self.logit_form, self.hidden.dtype).classes


def draw_by(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """int64 [M]: a place drawn from each row of probabilities [M, n], by inversion."""
    sums = probabilities.cumsum(-1)
    below = sums <= (uniforms * sums[:, -1])[:, None]
    last = probabilities.shape[1] - 1 - (probabilities.flip(-1) > 0).to(torch.uint8).argmax(-1)
    return torch.minimum(below.sum(-1), last)
