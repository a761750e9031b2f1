"""The full softmax: the reference, as torch computes it."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor
from torch.nn.functional import cross_entropy

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.classes import Classes
from logitsieve.training.losses.loss import Common, SoftmaxLoss, full_losses
from logitsieve.training.losses.targets import Targets


class FullSoftmax(SoftmaxLoss):
    """Cross-entropy over all classes: holds the logits [B, V] and a dense gradient [V, D]."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        absolute: bool = False,
        classes: Classes | None = None,
        **common: Unpack[Common],
    ) -> None:
        if common.setdefault("sparse", False):
            raise InvalidRequest("sparse", True, "False: every class has a gradient in each step")
        super().__init__(in_features, n_classes, absolute=absolute, classes=classes, **common)

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        """The losses [B]."""
        x_BV = self.full_logits(hidden_BD)
        if targets.single:
            return cross_entropy(x_BV, targets.classes, reduction="none")
        return full_losses(x_BV, targets)
