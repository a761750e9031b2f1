"""The sampled softmax: all that a method has to bring is its candidates.

-mean x_t + log(sum over the row's targets e^{x_t} + sum over candidates e^{x_j + log_weight_j}),
whose inner sum estimates Z = sum over V e^x without bias where the log-weights are right. Its log
is not unbiased (Jensen), by about -Var / (2 Z^2).

Shape letters: B rows that have a target, D hidden size, V classes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Unpack

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.ragged import ragged_losses
from logitsieve.training.autograd.rng import Step, processes
from logitsieve.training.autograd.seeded import SeededLoss
from logitsieve.training.autograd.shared import shared_losses
from logitsieve.training.losses.loss import Common, at_least
from logitsieve.training.losses.proposal import Ragged, Shared, Structure
from logitsieve.training.losses.targets import Targets
from logitsieve.training.structures.track import Follower, Progress, attached


class SampledSoftmax(SeededLoss):
    """A softmax loss over candidates that `propose` names; see proposal.py for what they are.

    `structure` is what `propose` looks into, if anything: `follow` keeps it up to date, and it is
    part of the state, as `seed` and the number of steps made are.
    """

    structure: Structure | None

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        seed: int = 0,
        absolute: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(in_features, n_classes, seed=seed, absolute=absolute, **common)
        self.structure = None
        self.progress = Progress()
        self._followers: list[tuple[Follower, RemovableHandle]] = []

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        """See SoftmaxLoss."""
        if self.random.step == 0 and processes() > 1:
            self.rebuild()  # DDP copied one process's weights over ours after they were indexed
        return super().forward(hidden, target)

    @abstractmethod
    def propose(self, hidden_BD: Tensor, targets: Targets, random: Step) -> Shared | Ragged:
        """See proposal.Proposal."""

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        """The estimated losses [B]."""
        candidates = self.propose(hidden_BD.detach(), targets, self.random.next())
        if isinstance(candidates, Shared):
            return shared_losses(hidden_BD, self.classes, self.law, targets, candidates)
        return ragged_losses(hidden_BD, self.classes, self.law, targets, candidates)

    def rebuild(self) -> None:
        """Index all rows as they are now: after weights were set by hand."""
        if self.structure is not None:
            self.structure.rebuild(*self.classes.detached())
            self.progress.forget()

    def tie(self, embedding: nn.Embedding) -> None:
        """Share the weights of `embedding`: of sparse gradients if its own are, dense ones else.

        Raises InvalidRequest, and ties nothing, where `follow` of an optimizer that is followed
        would, called after this.
        """
        before = self.classes.weight, self.classes.sparse
        super().tie(embedding)
        try:
            self._check_followers()
        except InvalidRequest:
            self.classes.weight, self.classes.sparse = before
            raise
        self.rebuild()

    def _check_followers(self) -> None:
        self._followers = [each for each in self._followers if attached(each[1])]
        for follower, _ in self._followers:
            follower.check()

    def follow(
        self,
        optimizer: Optimizer,
        *,
        every: int = 50,
        growth: float = 1.0,
        rebuild_every: int | None = None,
    ) -> RemovableHandle | None:
        """Keep the structure up to date with `optimizer`, after whose steps this looks.

        Rows with a gradient are indexed anew every `every` steps, a period that is multiplied by
        `growth` each time. With rebuild_every all rows are, every so many steps. Returns a handle
        that ends this by .remove(), or None where there is nothing to keep. Raises InvalidRequest.
        """
        at_least("every", every, 1)
        if rebuild_every is not None:
            at_least("rebuild_every", rebuild_every, 1)
        if not growth >= 1:
            raise InvalidRequest("growth", growth, ">= 1")
        if self.structure is None:
            return None
        follower = Follower(
            optimizer, self.classes, self.structure, self.progress, every, growth, rebuild_every
        )
        follower.check()
        handle = follower.attach()
        self._followers.append((follower, handle))
        return handle

    def __getstate__(self) -> dict[str, Any]:
        """A copy follows nothing: the optimizer moves the original."""
        return {**self.__dict__, "_followers": []}

    def get_extra_state(self) -> dict[str, Any]:
        """Tensors, numbers and dicts of them, beside the parameters."""
        state = super().get_extra_state()
        if self.structure is not None:
            state["structure"] = self.structure.state_dict()
            state["progress"] = self.progress.state_dict()
        return state

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from where the other run was."""
        super().set_extra_state(state)
        if self.structure is not None:
            self.structure.load_state_dict(state["structure"])
            self.progress.load_state_dict(state["progress"])
