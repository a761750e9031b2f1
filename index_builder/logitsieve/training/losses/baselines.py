"""Baselines that the papers compare with.

Shape letters: m draws, C different ones, K best classes of a row, b rows at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int32, Int64
from logitsieve.training.autograd.batch import RaggedCandidates, SharedCandidates, StepRng, Targets
from logitsieve.training.autograd.candidates import merge_classes, merged_logits
from logitsieve.training.autograd.classes import BlockWeights, LogitForm
from logitsieve.training.losses.loss import FullSoftmax, LossOptions
from logitsieve.training.losses.sampled import SampledSoftmax
from logitsieve.training.proposals.frequency import (
    FrequencyProposal,
    by_frequency,
    log_uniform_weights,
    uniform_weights,
)
from logitsieve.training.proposals.kernel import KernelProposal
from logitsieve.training.proposals.proposal import Csr, Proposal, SearchProposal
from logitsieve.training.structures.tree import Features, QuadraticFeatures
from logitsieve.utils.options import option

CLASSES_AT_ONCE = 8192


@dataclass(kw_only=True, eq=False)
class TopK(SearchProposal):
    """The classes with the k largest of all logits, and the targets; biased without n_uniform.

    "TopK-softmax" of the LNS paper (Daghaghi et al. 2020). With n_uniform, this is LSH Softmax with
    a perfect search.
    """

    def default_n_uniform(self, k: int) -> int:
        return 0

    def search_rows(self, hidden_BD: Tensor, targets_BM: Int64, rng: StepRng) -> Csr:
        best_BK = self._best(hidden_BD)
        target_BK = (best_BK[:, :, None] == targets_BM[:, None, :]).any(-1)
        offsets = np.concatenate([[0], np.cumsum((~target_BK).sum(1))])
        return offsets, best_BK[~target_BK].astype(np.int32)

    def search_batch(self, hidden_BD: Tensor, targets_BM: Int64) -> Int32:
        ids, votes = np.unique(self._best(hidden_BD), return_counts=True)
        other = ~np.isin(ids, targets_BM)
        ids, votes = ids[other], votes[other]
        best = ids[np.argsort(-votes, kind="stable")[: self.sizes.max_shared]]
        return np.sort(best).astype(np.int32)

    def _best(self, hidden_BD: Tensor) -> Int64:
        weight, bias = self.classes.detached()
        values = hidden_BD.new_empty(len(hidden_BD), 0)
        ids = torch.empty(len(hidden_BD), 0, dtype=torch.int64, device=hidden_BD.device)
        for start in range(0, self.n_classes, CLASSES_AT_ONCE):
            chunk = slice(start, start + CLASSES_AT_ONCE)
            x = self.classes.form.logits(
                hidden_BD, weight[chunk], None if bias is None else bias[chunk]
            )
            chunk_ids = torch.arange(start, start + x.shape[1], device=x.device).expand_as(x)
            values, ids = torch.cat([values, x], 1), torch.cat([ids, chunk_ids], 1)
            values, places = values.topk(min(self.sizes.k, values.shape[1]), dim=1, sorted=False)
            ids = ids.gather(1, places)
        ascending: Int64 = ids.sort(dim=1).values.cpu().numpy()
        return ascending


@dataclass(kw_only=True, eq=False)
class Exp(Proposal):
    """Draws m classes per row from the softmax without its targets: O(V) per row.

    The best possible proposal (Rawat et al. 2019, section 2; Bengio and Senecal 2008): the loss and
    the expected gradient are those of the full softmax.
    """

    n_sampled: int = option(100, "m, the number of draws.", 1)

    logits_at_once = 1 << 22

    def propose(self, hidden_BD: Tensor, targets: Targets, rng: StepRng) -> RaggedCandidates:
        m = self.n_sampled
        uniforms_BM = rng.uniforms(targets.count * m).view(-1, m).to(hidden_BD.device)
        step = max(self.logits_at_once // self.n_classes, 1)
        parts = [
            self._draw(hidden_BD[i:last], targets.slice(i, last), uniforms_BM[i:last])
            for i in range(0, targets.count, step)
            for last in [min(i + step, targets.count)]
        ]
        offsets = torch.arange(targets.count + 1) * m
        ids = torch.cat([part[0].view(-1) for part in parts])
        return RaggedCandidates(offsets, ids, torch.cat([part[1].view(-1) for part in parts]))

    @torch.no_grad()
    def _draw(
        self, hidden_bD: Tensor, targets: Targets, uniforms_bM: Tensor
    ) -> tuple[Tensor, Tensor]:
        x_bV = self.classes.logits(hidden_bD).double()
        x_bV[targets.rows, targets.classes] = -torch.inf
        log_z_b1 = x_bV.logsumexp(1, keepdim=True)
        sums_bV = (x_bV - log_z_b1).exp_().cumsum(1)
        ids_bM = torch.searchsorted(sums_bV, uniforms_bM * sums_bV[:, -1:], right=True)
        ids_bM.clamp_(max=self.n_classes - 1)
        return ids_bM, log_z_b1 - x_bV.gather(1, ids_bM) - log(self.n_sampled)


@dataclass(kw_only=True, eq=False)
class Quadratic(KernelProposal):
    """Draws by alpha (h.w)^2 + 1 (Blanc, Rendle 2018), for a loss with absolute logits.

    With a `scale`, the kernel takes the cosine (Rawat et al.). A branch costs D (D + 1) / 2.
    """

    alpha: float = option(100.0, "Larger: the 1 matters less.")

    def feature_map(self, dim: int, seed: int) -> Features:
        if not 0 < self.alpha < float("inf"):
            raise InvalidRequest("alpha", self.alpha, "a positive number")
        return QuadraticFeatures(dim, self.alpha)


class _FrequencyLoss(SampledSoftmax):
    proposal: FrequencyProposal
    default_weights = staticmethod(uniform_weights)
    first_bias = 0.0

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        class_counts: Tensor | None = None,
        *,
        n_sampled: int = 100,
        seed: int = 0,
        **common: Unpack[LossOptions],
    ) -> None:
        weights = self.default_weights(n_classes) if class_counts is None else class_counts
        proposal = FrequencyProposal(weights, n_sampled=n_sampled)
        super().__init__(in_features, n_classes, proposal, seed=seed, **common)
        if self.classes.bias is not None:
            nn.init.constant_(self.classes.bias, self.first_bias * log(n_classes))


class ImportanceSoftmax(_FrequencyLoss):
    """-x_t + log((1 / m) sum over draws of e^{x_j} / q_j), q by class_counts [V] or uniform.

    Bengio and Senecal 2003; "IS" in Levy, Chen, Ermon 2018, section 6.1. The loss can be negative.
    """

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        merged = merge_classes(targets, self.proposal.shared(self.random.next()))
        x_BC, x_P = merged_logits(hidden_BD, self.classes, merged, targets)
        return (x_BC + merged.log_weights.to(x_BC.dtype)).logsumexp(1) - targets.means(x_P)


class NCE(_FrequencyLoss):
    """-mean log s(y_t) - sum over draws of log(1 - s(y_j)), y = x - log(m q), s the sigmoid.

    Noise-contrastive estimation (Gutmann and Hyvarinen 2010), with Z = 1 (Mnih and Teh 2012). The
    batch shares m draws by class_counts [V] (default: log-uniform by id), which may be targets.
    Biases start at -log V, so that Z starts near 1.
    """

    default_weights = staticmethod(log_uniform_weights)
    first_bias = -1.0

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        ids, log_m = self.proposal.shared(self.random.next()).ids, log(self.proposal.n_sampled)
        once = torch.zeros(len(ids), dtype=torch.float64)
        merged = merge_classes(targets, SharedCandidates(ids, once))
        x_BC, x_P = merged_logits(hidden_BD, self.classes, merged, targets)
        times_C = merged.log_weights.exp().to(x_BC.dtype)
        log_mq_U = (log_m + self.proposal.log_q[merged.ids.cpu()]).to(x_BC)
        noise_B = softplus(x_BC - log_mq_U[: len(times_C)]) @ times_C
        data_P = softplus(log_mq_U[merged.slots] - x_P)
        return targets.means(data_P) + noise_B


class DSoftmax(FullSoftmax):
    """Full softmax over blocks of n classes with d coordinates of their own: sum of n d, not V D.

    Chen, Grangier, Auli 2016, section 2.2. blocks: (n, d) of each, most frequent classes first,
    which add up to V and D. By default, a tenth of the classes has half of the coordinates, the
    next three tenths have a quarter. class_counts [V]: by default, frequencies fall with the id.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        class_counts: Tensor | None = None,
        *,
        blocks: Sequence[tuple[int, int]] | None = None,
        **common: Unpack[LossOptions],
    ) -> None:
        whole("in_features", in_features, 3)
        whole("n_classes", n_classes, 3)
        blocks = _default_blocks(n_classes, in_features) if blocks is None else blocks
        _check_blocks(blocks, n_classes, in_features)
        order = torch.arange(n_classes)
        if class_counts is not None:
            order = by_frequency(n_classes, class_counts)
        classes = BlockWeights(
            blocks,
            order,
            bias=common.get("bias", True) and common.get("scale") is None,
            form=LogitForm(scale=common.get("scale"), absolute=common.get("absolute", False)),
            device=common.get("device"),
            dtype=common.get("dtype"),
        )
        super().__init__(in_features, n_classes, classes=classes, **common)


def _default_blocks(n_classes: int, in_features: int) -> list[tuple[int, int]]:
    head, middle = max(n_classes // 10, 1), max(3 * n_classes // 10, 1)
    wide, half = max(in_features // 2, 1), max(in_features // 4, 1)
    rest = (n_classes - head - middle, in_features - wide - half)
    return [(head, wide), (middle, half), rest]


def _check_blocks(blocks: Sequence[tuple[int, int]], n_classes: int, in_features: int) -> None:
    pairs = all(isinstance(block, Sequence) and len(block) == 2 for block in blocks)
    fit = pairs and all(type(size) is int and size > 0 for block in blocks for size in block)
    if not fit or tuple(map(sum, zip(*blocks, strict=True))) != (n_classes, in_features):
        allowed = f"(classes, dimensions) of blocks that add up to {(n_classes, in_features)}"
        raise InvalidRequest("blocks", list(blocks), allowed)
