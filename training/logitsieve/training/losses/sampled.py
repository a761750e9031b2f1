"""The sampled softmax: a method only has to propose candidates.

-mean x_t + log(sum over the row's targets e^{x_t} + sum over candidates e^{x_j + log_weight_j}),
whose inner sum estimates Z = sum over V e^x without bias where the log-weights are right. Its log
is not unbiased (Jensen), by about -Var / (2 Z^2).

Shape letters: B rows that have a target, D hidden size, V classes, m draws, b rows at once.
"""

from __future__ import annotations

from abc import abstractmethod
from math import log
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import (
    RaggedCandidates,
    SharedCandidates,
    Targets,
    check_at_least,
)
from logitsieve.training.autograd.classes import ClassWeights
from logitsieve.training.autograd.ragged import ragged_losses
from logitsieve.training.autograd.rng import LARGEST_SEED, Randomness, StepRng, processes
from logitsieve.training.autograd.shared import shared_losses
from logitsieve.training.losses.loss import LossOptions, SoftmaxLoss
from logitsieve.training.structures.track import Structure, Tracker, TrackingState, attached


class SeededLoss(SoftmaxLoss):
    """A loss that draws; `seed` and the number of steps made are part of its state."""

    classes: ClassWeights

    def __init__(
        self, in_features: int, n_classes: int, *, seed: int = 0, **common: Unpack[LossOptions]
    ) -> None:
        super().__init__(in_features, n_classes, **common)
        check_at_least("seed", seed, 0, LARGEST_SEED)
        self.random = Randomness(seed)

    def _nothing(self, prepared: Tensor, shape: torch.Size) -> Tensor:
        self.random.next()  # so that all processes stay at the same step
        return super()._nothing(prepared, shape)

    def get_extra_state(self) -> dict[str, Any]:
        return {"seed": self.random.seed, "step": self.random.step}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.random.seed, self.random.step = state["seed"], state["step"]


class DrawOptions(LossOptions, total=False):
    """n_sampled: m, the number of draws. seed: of the draws."""

    n_sampled: int
    seed: int


class DrawnLoss(SeededLoss):
    """A loss whose negatives are `n_sampled` draws."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        n_sampled: int = 100,
        seed: int = 0,
        **common: Unpack[LossOptions],
    ) -> None:
        super().__init__(in_features, n_classes, seed=seed, **common)
        check_at_least("n_sampled", n_sampled, 1)
        self.n_sampled = n_sampled


class SampledSoftmax(SeededLoss):
    """A softmax loss over the candidates of `propose`.

    `structure`, if any, is the index that `propose` searches: `track` keeps it up to date, and it
    is saved with the rest of the state.
    """

    def __init__(
        self, in_features: int, n_classes: int, *, seed: int = 0, **common: Unpack[LossOptions]
    ) -> None:
        super().__init__(in_features, n_classes, seed=seed, **common)
        self.structure: Structure | None = None
        self.tracking = TrackingState()
        self._trackers: list[tuple[Tracker, RemovableHandle]] = []

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        if self.random.step == 0 and processes() > 1:
            self.rebuild()  # DDP copied one process's weights over ours after indexing them
        return super().forward(hidden, target)

    @abstractmethod
    def propose(
        self, hidden_BD: Tensor, targets: Targets, random: StepRng
    ) -> SharedCandidates | RaggedCandidates:
        """Candidates for rows that have targets.

        hidden is detached, and normalised if the logits are. All randomness comes from `random`, so
        that a run can be resumed.
        """

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        candidates = self.propose(hidden_BD.detach(), targets, self.random.next())
        if isinstance(candidates, SharedCandidates):
            return shared_losses(hidden_BD, self.classes, self.logit_form, targets, candidates)
        return ragged_losses(hidden_BD, self.classes, self.logit_form, targets, candidates)

    def rebuild(self) -> None:
        """Index all rows again, as is needed after weights were set by hand."""
        if self.structure is not None:
            self.structure.rebuild(*self.classes.detached())
            self.tracking.forget()

    def tie(self, embedding: nn.Embedding) -> None:
        """Share the weights of `embedding`; gradients are sparse if its own are.

        Raises InvalidRequest, and ties nothing, if a tracked optimizer could not be tracked after
        this.
        """
        before = self.classes.weight, self.classes.sparse
        super().tie(embedding)
        try:
            self._trackers = [each for each in self._trackers if attached(each[1])]
            for tracker, _ in self._trackers:
                tracker.check()
        except InvalidRequest:
            self.classes.weight, self.classes.sparse = before
            raise
        self.rebuild()

    def track(
        self,
        optimizer: Optimizer,
        *,
        every: int = 50,
        growth: float = 1.0,
        rebuild_every: int | None = None,
    ) -> RemovableHandle | None:
        """Keep the structure up to date with the steps of `optimizer`.

        Rows with a gradient are indexed again every `every` steps, a period that is multiplied by
        `growth` each time. With rebuild_every all rows are, every so many steps. Returns a handle
        whose .remove() ends this, or None without a structure. Raises InvalidRequest.
        """
        check_at_least("every", every, 1)
        if rebuild_every is not None:
            check_at_least("rebuild_every", rebuild_every, 1)
        if not growth >= 1:
            raise InvalidRequest("growth", growth, ">= 1")
        if self.structure is None:
            return None
        tracker = Tracker(
            optimizer, self.classes, self.structure, self.tracking, every, growth, rebuild_every
        )
        tracker.check()
        handle = tracker.attach()
        self._trackers.append((tracker, handle))
        return handle

    def __getstate__(self) -> dict[str, Any]:
        """State for a copy, which tracks nothing: the optimizer moves the original."""
        return {**self.__dict__, "_trackers": []}

    def get_extra_state(self) -> dict[str, Any]:
        state = super().get_extra_state()
        if self.structure is not None:
            state["structure"] = self.structure.state_dict()
            state["progress"] = self.tracking.state_dict()
        return state

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        if self.structure is not None:
            self.structure.load_state_dict(state["structure"])
            self.tracking.load_state_dict(state["progress"])


class ExpSoftmax(DrawnLoss, SampledSoftmax):
    """m draws a row from the softmax over the classes that are no targets of it. O(V) a row.

    The best proposal possible: Rawat et al. 2019, Sampled Softmax with Random Fourier Features,
    section 2; Bengio and Senecal 2008.

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
