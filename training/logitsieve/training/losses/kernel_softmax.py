"""Sampled softmax with negatives from a kernel tree, in three forms.

Shape letters: B rows that have a target, D hidden size, V classes, m draws, L' different leaves, n
classes a leaf, K different ids.

- shared: m draws for the batch from the mean of the rows' laws, log-weight -log(m q_j). A row's
  targets are masked, and m counts the masked draws: correcting by 1 - q_t would be wrong.
- per_row: m draws for each row from its own tree without its targets, log-weight -log(m q_j).
- pooled: m draws for each row from its own tree, used by all rows; log-weight -log(B m q_j), q the
  mean of the rows' laws as drawn. K B paths are computed: for small batches.
"""

from __future__ import annotations

from math import log
from typing import Literal, Unpack

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float64
from logitsieve.training.autograd.rng import Step
from logitsieve.training.losses.loss import Common, at_least
from logitsieve.training.losses.proposal import Ragged, Shared
from logitsieve.training.losses.sampled import SampledSoftmax
from logitsieve.training.losses.targets import Targets
from logitsieve.training.structures.features import Features
from logitsieve.training.structures.leaf_law import LeafLaw, draw_by
from logitsieve.training.structures.tree import Excluded, KernelTree, as_numpy

Form = Literal["shared", "per_row", "pooled"]


# Classes a leaf at most. Larger ones make the law better and a draw dearer: for a batch, all rows'
# logits are computed in each leaf drawn.
LEAVES: dict[Form, int] = {"shared": 32, "per_row": 128, "pooled": 128}


class TreeOptions(Common, total=False):
    """n_sampled: m. form: see above. leaf: see LEAVES. seed: of draws and features."""

    n_sampled: int
    form: Form
    leaf: int | None
    seed: int


class KernelSoftmax(SampledSoftmax):
    """Candidates in proportion to a kernel above the leaves and to e^logit within them."""

    tree: KernelTree

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        features: Features,
        *,
        n_sampled: int = 100,
        form: Form = "shared",
        leaf: int | None = None,
        seed: int = 0,
        absolute: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(in_features, n_classes, seed=seed, absolute=absolute, **common)
        at_least("n_sampled", n_sampled, 1)
        if form not in ("shared", "per_row", "pooled"):
            raise InvalidRequest("form", form, "shared, per_row, pooled")
        leaf = LEAVES[form] if leaf is None else leaf
        at_least("leaf", leaf, 1)
        self.n_sampled, self.form = n_sampled, form
        self.tree = KernelTree(features, in_features, n_classes, self.law, leaf)
        self.structure = self.tree
        self.tree.rebuild(self.classes.weight.detach(), None)

    def propose(self, hidden_BD: Tensor, targets: Targets, random: Step) -> Shared | Ragged:
        """See proposal.Proposal."""
        if self.form == "per_row":
            return self._for_each(hidden_BD, targets, random)
        if self.form == "pooled":
            return self._pooled(hidden_BD, random)
        return self._shared(hidden_BD, targets, random)

    def _vectors(self, hidden_BD: Tensor) -> Tensor:
        """What the kernel is of: with a scale, vectors of norm 1."""
        return hidden_BD if self.law.scale is None else hidden_BD / self.law.scale

    def _shared(self, hidden_BD: Tensor, targets: Targets, random: Step) -> Shared:
        weight, m = self.classes.weight.detach(), self.n_sampled
        uniforms = random.uniforms(2 * m).view(2, m)
        one = self.tree.mixture(self.tree.queries(self._vectors(hidden_BD)))
        drawn, log_q = self.tree.draw_leaves(one, Excluded.nothing(1), uniforms[:1].numpy())
        leaves, places = np.unique(drawn[0], return_inverse=True)
        device = weight.device
        log_q_M, place_M = (torch.from_numpy(x).to(device) for x in (log_q[0], places))
        members = self.tree.members(torch.from_numpy(leaves)).to(device)
        law = LeafLaw(hidden_BD, targets, weight, self.law)
        p_Mn = law.probabilities(members, place_M, log_q_M)[place_M]
        within_M = draw_by(p_Mn, uniforms[1].to(device))
        log_q_M = log_q_M + p_Mn.gather(1, within_M[:, None])[:, 0].log()
        return Shared(members[place_M, within_M], -log(m) - log_q_M)

    def _for_each(self, hidden_BD: Tensor, targets: Targets, random: Step) -> Ragged:
        m, count = self.n_sampled, targets.count
        excluded = Excluded.of(targets.rows, targets.classes, count, self.n_classes)
        queries = self.tree.queries(self._vectors(hidden_BD))
        weight, uniforms = self.classes.weight.detach(), self._uniforms(count, random)
        drawn, log_q = self.tree.draw(queries, excluded, as_numpy(hidden_BD), weight, uniforms)
        there = drawn >= 0
        offsets = torch.from_numpy(np.concatenate([[0], there.sum(1).cumsum()]))
        ids, log_weights = torch.from_numpy(drawn[there]), -log(m) - torch.from_numpy(log_q[there])
        return Ragged(offsets, ids, log_weights)

    def _pooled(self, hidden_BD: Tensor, random: Step) -> Shared:
        count, hidden, weight = len(hidden_BD), as_numpy(hidden_BD), self.classes.weight.detach()
        queries, excluded = self.tree.queries(self._vectors(hidden_BD)), Excluded.nothing(count)
        uniforms = self._uniforms(count, random)
        drawn, _ = self.tree.draw(queries, excluded, hidden, weight, uniforms)
        ids_K, place = np.unique(drawn, return_inverse=True)
        log_q_BK = torch.from_numpy(self.tree.log_q(queries, excluded, hidden, weight, ids_K))
        log_q_K = log_q_BK.logsumexp(0) - log(count)
        draws = torch.from_numpy(place.reshape(-1))
        ids = torch.from_numpy(ids_K)[draws]
        return Shared(ids, -log(count * self.n_sampled) - log_q_K[draws])

    def _uniforms(self, count: int, random: Step) -> Float64:
        """[2, B, m]: for the branches, and for the draw within the leaf."""
        numbers: Float64 = random.uniforms(2 * count * self.n_sampled).numpy()
        return numbers.reshape(2, count, self.n_sampled)
