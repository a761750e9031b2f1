"""Draws from a kernel tree: RF-softmax, and the base of the quadratic kernel.

Blanc, Rendle 2018; Rawat et al. 2019, section 3.2. The batch shares m draws from the mean of the
rows' distributions, with log-weights -log(m q_j); m includes draws that are masked as targets.

Shape letters: L' different leaves, n classes a leaf.
"""

from abc import abstractmethod
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import SharedCandidates, StepRng, Targets
from logitsieve.training.autograd.classes import ClassWeights, LogitForm
from logitsieve.training.proposals.proposal import Proposal
from logitsieve.training.structures.tree import FEATURES, Features, KernelTree
from logitsieve.utils.options import option

ROWS_AT_ONCE = 2048
LEAVES_OF_ESTIMATE = 32
LARGEST_LOGIT = 60.0  # float32 holds sums of terms between e^-60 and e^60
RF_SCALE = 1 / 0.3**2  # tau; section 4.1's temperature 0.3 is 1 / sqrt(tau)
LARGEST_FEATURES = 1 << 16
LARGEST_NU = 350.0  # e^{-2 nu}, the least mass of a class, is still positive


@dataclass(frozen=True)
class LeafSoftmax:
    """Distributions within leaves: class j in proportion to the sum over rows b of e^{x_bj} / Z^_b.

    Z^_b is an importance-sampled sum over some of the drawn leaves, plus the targets' e^x. It may
    be any estimate that does not depend on the draws within leaves.
    """

    hidden_states: Tensor
    targets: Targets
    weight: Tensor
    logit_form: LogitForm
    dtype: torch.dtype

    def probabilities(self, members: Tensor, leaf_of_draw: Tensor, log_q: Tensor) -> Tensor:
        """Return the distribution within each leaf, float64 [L', n]; a member V is no class.

        leaf_of_draw [M]: the row in `members` of each draw's leaf. log_q [M]: its log-probability.
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
        zeros_B = self.hidden_states.new_zeros(len(self.hidden_states))
        x_B = self._logits(some, zeros_B).to(self.hidden_states.dtype).view(*some.shape, -1)
        x_B.masked_fill_((some == len(self.weight))[..., None], -torch.inf)
        x_B -= (log_q + torch.tensor(float(len(log_q))).log()).to(x_B)[:, None, None]
        x_P = (self.targets.of(self.hidden_states) * self._read(self.targets.classes)).sum(-1)
        of_targets_B = self.targets.log_sums(x_P.abs_() if self.logit_form.absolute else x_P)
        return torch.logaddexp(x_B.flatten(0, 1).logsumexp(0), of_targets_B)

    def _logits(self, members: Tensor, log_z_B: Tensor) -> Tensor:
        """Return x - log Z^, [L' n, B] in `dtype`; undefined for members that are no class."""
        ids = members.reshape(-1).clamp(max=len(self.weight) - 1)
        rows, hidden_DB = self._read(ids).to(self.dtype), self.hidden_states.T.to(self.dtype)
        if self.logit_form.absolute:
            return (rows @ hidden_DB).abs_().sub_(log_z_B.to(self.dtype))
        return torch.addmm(-log_z_B.to(self.dtype), rows, hidden_DB)

    def _read(self, ids: Tensor) -> Tensor:
        rows = self.weight.index_select(0, ids).to(self.hidden_states.dtype)
        return rows if self.logit_form.scale is None else normalize(rows, dim=-1)


def draw_by(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a column of each row of probabilities [M, n], by inversion; int64 [M]."""
    sums = probabilities.cumsum(-1)
    below = sums <= (uniforms * sums[:, -1])[:, None]
    last = probabilities.shape[1] - 1 - (probabilities.flip(-1) > 0).to(torch.uint8).argmax(-1)
    return torch.minimum(below.sum(-1), last)


@dataclass(kw_only=True, eq=False)
class KernelProposal(Proposal):
    """Draws leaves in proportion to a kernel, and classes within them to e^logit."""

    n_sampled: int = option(100, "m, the number of draws.", 1)
    leaf: int = option(32, "Most classes of a leaf.", 1)
    bfloat16: bool = option(False, "Leaves in bfloat16: other draws, faster on some CPUs.")

    @abstractmethod
    def feature_map(self, dim: int, seed: int) -> Features:
        """Return the feature map of the kernel."""

    def start(self, classes: ClassWeights, seed: int) -> None:
        super().start(classes, seed)
        dim = classes.embedding_dim
        self.index = self.tree = KernelTree(
            self.feature_map(dim, seed), dim, self.n_classes, classes.form, self.leaf
        )

    def propose(self, hidden_BD: Tensor, targets: Targets, rng: StepRng) -> SharedCandidates:
        weight, m = self.classes.weight.detach(), self.n_sampled
        uniforms = rng.uniforms(2 * m).view(2, m)
        scale = self.classes.form.scale
        # With a scale, the kernel takes vectors of length 1.
        query = self.tree.mixture(hidden_BD if scale is None else hidden_BD / scale)
        drawn, log_q = self.tree.draw(query, uniforms[0].numpy())
        leaves, places = np.unique(drawn, return_inverse=True)
        log_q_M, place_M = (torch.from_numpy(x).to(weight.device) for x in (log_q, places))
        members = self.tree.members(torch.from_numpy(leaves)).to(weight.device)
        dtype = torch.bfloat16 if self.bfloat16 else hidden_BD.dtype
        leaf_softmax = LeafSoftmax(hidden_BD, targets, weight, self.classes.form, dtype)
        p_Mn = leaf_softmax.probabilities(members, place_M, log_q_M)[place_M]
        within_M = draw_by(p_Mn, uniforms[1].to(weight.device))
        log_q_M = log_q_M + p_Mn.gather(1, within_M[:, None])[:, 0].log()
        return SharedCandidates(members[place_M, within_M], -log(m) - log_q_M)


@dataclass(kw_only=True, eq=False)
class RandomFeatures(KernelProposal):
    """Estimates exp(nu cos(h, w)) by random features, for a loss with a `scale`.

    nu must be below tau (Remark 2); Figure 1 has T = 1 / sqrt(nu) = 0.5.
    """

    n_features: int = option(512, "R, random directions (the paper's D).", 1, LARGEST_FEATURES)
    nu: float = option(4.0, "Larger: nearer to the softmax, and noisier.")
    features: str = option("structured", f"Feature map: {', '.join(FEATURES)}.")

    def feature_map(self, dim: int, seed: int) -> Features:
        if not 0 < self.nu <= LARGEST_NU:
            raise InvalidRequest("nu", self.nu, f"a positive number, at most {LARGEST_NU:g}")
        if self.features not in FEATURES:
            raise InvalidRequest("features", self.features, ", ".join(FEATURES))
        if self.classes.form.scale is None:
            raise InvalidRequest("scale", None, "a positive number: the kernel needs unit vectors")
        return FEATURES[self.features](dim, self.n_features, self.nu, seed)
