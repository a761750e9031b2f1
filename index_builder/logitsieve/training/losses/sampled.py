"""The sampled softmax over the candidates of any proposal.

-mean x_t + log(sum over the row's targets e^{x_t} + sum over candidates e^{x_j + log_weight_j})

The sum in the log estimates Z = sum over V e^x without bias. Its log has a bias of about -Var / (2
Z^2).
"""

import copy
from functools import partial
from math import inf
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from logitsieve.api.checks import number, whole
from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import (
    LARGEST_SEED,
    Candidates,
    Randomness,
    SharedCandidates,
    Targets,
    processes,
    with_targets,
)
from logitsieve.training.autograd.candidates import ragged_losses, shared_losses
from logitsieve.training.autograd.classes import ClassWeights
from logitsieve.training.losses.loss import LossOptions, SoftmaxLoss
from logitsieve.training.proposals.proposal import Proposal
from logitsieve.training.structures.track import Tracking, check_trackable


class SampledSoftmax(SoftmaxLoss):
    """A softmax loss over the targets and the candidates of `proposal`, which is copied.

    in_batch: all rows' targets are candidates of every row, with log-weight 0. The state includes
    the draws' seed and step, and the index.
    """

    classes: ClassWeights

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        proposal: Proposal,
        *,
        in_batch: bool = False,
        seed: int = 0,
        **common: Unpack[LossOptions],
    ) -> None:
        super().__init__(in_features, n_classes, **common)
        whole("seed", seed, 0, LARGEST_SEED)
        self.random = Randomness(seed)
        self.in_batch = in_batch
        self.tracking = Tracking()
        self._tracked = False
        self.proposal = copy.copy(proposal)
        self.proposal.start(self.classes, seed)
        self.rebuild()

    @property
    def unservable(self) -> str | None:
        return self.proposal.unservable or super().unservable

    def forward(self, hidden_states: Tensor, target: Tensor) -> Tensor:
        if self.random.step == 0 and processes() > 1:
            self.rebuild()  # DDP has copied another process's weights after they were indexed
        return super().forward(hidden_states, target)

    def _nothing(self, prepared: Tensor, shape: torch.Size) -> Tensor:
        self.random.next()  # so that all processes stay at the same step
        return super()._nothing(prepared, shape)

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        drawn = self.propose(hidden_BD.detach(), targets)
        if isinstance(drawn, SharedCandidates):
            return shared_losses(hidden_BD, self.classes, targets, drawn)
        return ragged_losses(hidden_BD, self.classes, targets, drawn)

    def propose(self, hidden_BD: Tensor, targets: Targets) -> Candidates:
        drawn = self.proposal.propose(hidden_BD, targets, self.random.next())
        return with_targets(drawn, targets.classes) if self.in_batch else drawn

    def rebuild(self) -> None:
        """Index all rows again, for example after weights have been set."""
        if self.proposal.index is not None:
            self.proposal.index.rebuild(*self.classes.detached())
            self.tracking.forget()

    def tie(self, embedding: nn.Embedding) -> None:
        """Share the weights of `embedding`. InvalidRequest after `track`."""
        if self._tracked:
            raise InvalidRequest("embedding", "weights for a tracked loss", "tie before track")
        super().tie(embedding)
        self.rebuild()

    def track(
        self, optimizer: Optimizer, *, every: int = 50, growth: float = 1.0
    ) -> RemovableHandle | None:
        """Index rows with a gradient again every `every` steps of `optimizer`.

        Each time, this period grows by the factor `growth`. Returns a handle with .remove(), or
        None without an index. Raises InvalidRequest.
        """
        whole("every", every, 1)
        number("growth", growth, 1.0, inf)
        if self.proposal.index is None:
            return None
        check_trackable(optimizer, self.classes)
        self._tracked = True
        tracked = self.classes, self.proposal.index, every, growth
        return optimizer.register_step_post_hook(partial(self.tracking.after_step, *tracked))

    def get_extra_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"seed": self.random.seed, "step": self.random.step}
        if self.proposal.index is not None:
            state["structure"] = self.proposal.index.state_dict()
            state["progress"] = self.tracking.state_dict()
        return state

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.random.seed, self.random.step = state["seed"], state["step"]
        if self.proposal.index is not None:
            self.proposal.index.load_state_dict(state["structure"])
            self.tracking.load_state_dict(state["progress"])
