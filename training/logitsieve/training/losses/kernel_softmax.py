"""Sampled softmax with negatives from a kernel tree, in three forms: RF-softmax, quadratic softmax.

Blanc, Rendle 2018, Adaptive Sampled Softmax with Kernel Based Sampling; Rawat et al. 2019, Sampled
Softmax with Random Fourier Features, section 3.2 and equation 15.

Shape letters: B rows that have a target, D hidden size, V classes, m draws, L' different leaves, n
classes a leaf, K different ids.

- shared: m draws for the batch from the mean of the rows' distributions, log-weight -log(m q_j). A
  row's targets are masked, and m counts the masked draws: correcting by 1 - q_t would be wrong.
- per_row: m draws for each row from its own tree without its targets, log-weight -log(m q_j).
- pooled: m draws for each row from its own tree, used by all rows; log-weight -log(B m q_j), q the
  mean of the rows' distributions as drawn. K B paths are computed: for small batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Literal, Unpack

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float64
from logitsieve.kernels.simd.lanes import cpu_has
from logitsieve.training.autograd.batch import (
    RaggedCandidates,
    SharedCandidates,
    Targets,
    check_at_least,
)
from logitsieve.training.autograd.classes import LogitForm, read_touched
from logitsieve.training.autograd.rng import LARGEST_SEED, StepRng
from logitsieve.training.losses.sampled import DrawnLoss, DrawOptions, SampledSoftmax
from logitsieve.training.structures.features import FEATURES, Features, QuadraticFeatures
from logitsieve.training.structures.tree import Excluded, KernelTree, as_numpy

ROWS_AT_ONCE = 2048  # rows of W whose logits for the whole batch are held at a time
LEAVES_OF_ESTIMATE = 32  # leaves from which Z^ is estimated
BFLOAT16_IS_FAST = cpu_has("avx512bf16")  # other CPUs multiply float32 faster
LARGEST_LOGIT = 60.0  # e^60 and e^-60 bound the terms: float32 holds sums of them


@dataclass(frozen=True)
class LeafSoftmax:
    """Distributions within leaves, from prepared hidden [B, D], targets and current weights.

    Within a leaf, class j is drawn with a probability in proportion to

        sum over the rows b of e^{x_bj} / Z^_b,

    the batch's own softmax within the leaf if Z^_b is row b's normaliser. Any Z^_b gives a valid
    distribution, as long as it does not depend on what is drawn within: given the leaves, draws
    within them are independent, and each candidate counts with the probability it really had. Z^_b
    is the importance-sampled sum over some of the drawn leaves, plus the target's e^x, so that a
    row that is sure of itself does not count for more than it should.

    Shape letters: L' different leaves, n classes a leaf, M draws.
    """

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


TreeForm = Literal["shared", "per_row", "pooled"]


# Classes a leaf at most. Larger leaves draw closer to the softmax and cost more: for a batch, all
# rows' logits are computed in each leaf drawn.
LEAF_SIZES: dict[TreeForm, int] = {"shared": 32, "per_row": 128, "pooled": 128}


class KernelOptions(DrawOptions, total=False):
    """form: as above. leaf: default LEAF_SIZES. The seed is that of the features, too."""

    form: TreeForm
    leaf: int | None


class KernelSoftmax(DrawnLoss, SampledSoftmax):
    """Candidates in proportion to a kernel above the leaves and to e^logit within them."""

    tree: KernelTree

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        features: Features,
        *,
        form: TreeForm = "shared",
        leaf: int | None = None,
        **options: Unpack[DrawOptions],
    ) -> None:
        super().__init__(in_features, n_classes, **options)
        if form not in ("shared", "per_row", "pooled"):
            raise InvalidRequest("form", form, "shared, per_row, pooled")
        leaf = LEAF_SIZES[form] if leaf is None else leaf
        check_at_least("leaf", leaf, 1)
        self.form = form
        self.tree = KernelTree(features, in_features, n_classes, self.logit_form, leaf)
        self.structure = self.tree
        self.tree.rebuild(self.classes.weight.detach(), None)

    def propose(
        self, hidden_BD: Tensor, targets: Targets, random: StepRng
    ) -> SharedCandidates | RaggedCandidates:
        if self.form == "per_row":
            return self._propose_per_row(hidden_BD, targets, random)
        if self.form == "pooled":
            return self._pooled(hidden_BD, random)
        return self._shared(hidden_BD, targets, random)

    def _vectors(self, hidden_BD: Tensor) -> Tensor:
        """Vectors that the kernel is applied to: of norm 1 with a scale."""
        return hidden_BD if self.logit_form.scale is None else hidden_BD / self.logit_form.scale

    def _shared(self, hidden_BD: Tensor, targets: Targets, random: StepRng) -> SharedCandidates:
        weight, m = self.classes.weight.detach(), self.n_sampled
        uniforms = random.uniforms(2 * m).view(2, m)
        mixture = self.tree.mixture(self.tree.queries(self._vectors(hidden_BD)))
        drawn, log_q = self.tree.draw_leaves(mixture, uniforms[:1].numpy())
        leaves, places = np.unique(drawn[0], return_inverse=True)
        device = weight.device
        log_q_M, place_M = (torch.from_numpy(x).to(device) for x in (log_q[0], places))
        members = self.tree.members(torch.from_numpy(leaves)).to(device)
        logit_form = LeafSoftmax(hidden_BD, targets, weight, self.logit_form)
        p_Mn = logit_form.probabilities(members, place_M, log_q_M)[place_M]
        within_M = draw_by(p_Mn, uniforms[1].to(device))
        log_q_M = log_q_M + p_Mn.gather(1, within_M[:, None])[:, 0].log()
        return SharedCandidates(members[place_M, within_M], -log(m) - log_q_M)

    def _propose_per_row(
        self, hidden_BD: Tensor, targets: Targets, random: StepRng
    ) -> RaggedCandidates:
        m, count = self.n_sampled, targets.count
        excluded = Excluded.of(targets.rows, targets.classes, count, self.n_classes)
        queries = self.tree.queries(self._vectors(hidden_BD), excluded)
        weight, uniforms = self.classes.weight.detach(), self._uniforms(count, random)
        drawn, log_q = self.tree.draw(queries, as_numpy(hidden_BD), weight, uniforms)
        is_drawn = drawn >= 0  # -1: no class was left to draw
        offsets = torch.from_numpy(np.concatenate([[0], is_drawn.sum(1).cumsum()]))
        log_weights = -log(m) - torch.from_numpy(log_q[is_drawn])
        return RaggedCandidates(offsets, torch.from_numpy(drawn[is_drawn]), log_weights)

    def _pooled(self, hidden_BD: Tensor, random: StepRng) -> SharedCandidates:
        count, hidden, weight = len(hidden_BD), as_numpy(hidden_BD), self.classes.weight.detach()
        queries = self.tree.queries(self._vectors(hidden_BD))
        drawn, _ = self.tree.draw(queries, hidden, weight, self._uniforms(count, random))
        ids_K, place = np.unique(drawn, return_inverse=True)
        log_q_BK = torch.from_numpy(self.tree.log_q(queries, hidden, weight, ids_K))
        log_q_K = log_q_BK.logsumexp(0) - log(count)
        draws = torch.from_numpy(place.reshape(-1))
        ids = torch.from_numpy(ids_K)[draws]
        return SharedCandidates(ids, -log(count * self.n_sampled) - log_q_K[draws])

    def _uniforms(self, count: int, random: StepRng) -> Float64:
        """[2, B, m]: one set for the branches, one for the draws within leaves."""
        numbers: Float64 = random.uniforms(2 * count * self.n_sampled).numpy()
        return numbers.reshape(2, count, self.n_sampled)


SCALE = 1 / 0.3**2  # tau: the temperature 0.3 of section 4.1 is 1 / sqrt(tau)
LARGEST_FEATURES = 1 << 16
NU = 4.0  # below tau (Remark 2); T = 1 / sqrt(nu) = 0.5 in Figure 1
LARGEST_NU = 350.0  # e^{-2 nu}, below which no class's mass falls, is still above 0


class RFSoftmax(KernelSoftmax):
    """x = scale * cos(h, w), no bias; branches by random-feature estimates of exp(nu cos(h, w)).

    n_features: R, the number of random directions (D in the paper). nu: larger is nearer to the
    softmax and noisier. features: "structured" (SORF), "fourier" or "positive".
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        n_features: int = 512,
        nu: float = NU,
        features: str = "structured",
        **options: Unpack[KernelOptions],
    ) -> None:
        check_at_least("in_features", in_features, 1)
        check_at_least("n_features", n_features, 1, LARGEST_FEATURES)
        if not 0 < nu <= LARGEST_NU:
            raise InvalidRequest("nu", nu, f"a positive number, at most {LARGEST_NU:g}")
        if features not in FEATURES:
            raise InvalidRequest("features", features, ", ".join(FEATURES))
        options.setdefault("scale", SCALE)
        if options["scale"] is None:
            raise InvalidRequest("scale", None, "a positive number: the kernel needs unit vectors")
        seed = options.get("seed", 0)
        check_at_least("seed", seed, 0, LARGEST_SEED)
        phi = FEATURES[features](in_features, n_features, nu, seed)
        super().__init__(in_features, n_classes, phi, **options)


ALPHA = 100.0


class QuadraticSoftmax(KernelSoftmax):
    """The softmax of |h.w|, no bias, negatives by alpha (h.w)^2 + 1. Not servable: `export` raises.

    With `scale`, of |scale * cos(h, w)|, and the kernel is of the cosine, as in the comparison of
    Rawat et al. A branch costs D (D + 1) / 2: use it for small D.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        alpha: float = ALPHA,
        **options: Unpack[KernelOptions],
    ) -> None:
        check_at_least("in_features", in_features, 1)
        if not 0 < alpha < float("inf"):
            raise InvalidRequest("alpha", alpha, "a positive number")
        options["bias"], options["absolute"] = False, True
        phi = QuadraticFeatures(in_features, alpha)
        super().__init__(in_features, n_classes, phi, **options)
