"""The full softmax, dense and in chunks of rows.

The chunked form is Liger Kernel's fused linear cross-entropy (Hsu et al. 2024): gradients are taken
from each chunk of logits before the next.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor
from torch.autograd import backward
from torch.autograd.function import once_differentiable

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import Targets
from logitsieve.training.autograd.classes import Classes, LogitForm
from logitsieve.training.losses.loss import LOGITS_AT_ONCE, LossOptions, SoftmaxLoss, full_losses


class FullSoftmax(SoftmaxLoss):
    """Cross-entropy over all classes: holds the logits [B, V] and a dense gradient [V, D]."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        classes: Classes | None = None,
        **common: Unpack[LossOptions],
    ) -> None:
        if common.setdefault("sparse", False):
            raise InvalidRequest("sparse", True, "False: every class has a gradient in each step")
        super().__init__(in_features, n_classes, classes=classes, **common)

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        return full_losses(self.classes.logits(hidden_BD), targets)


class ChunkedSoftmax(FullSoftmax):
    """FullSoftmax's loss and gradients; never holds logits of more than half of the rows.

    Gradients of a sum or a mean are computed in the forward pass; reduction "none" is FullSoftmax.
    """

    def total(self, hidden_BD: Tensor, targets: Targets, share: float) -> Tensor:
        weight, bias = self.classes.weight, self.classes.bias
        result: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
            self.classes.form, targets, share, hidden_BD, weight, bias
        )
        return result


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, form: LogitForm, targets: Targets, share: float, *inputs: Tensor | None
    ) -> Tensor:
        leaves = [
            None if x is None else x.detach().requires_grad_(needed)
            for x, needed in zip(inputs, ctx.needs_input_grad[3:], strict=True)
        ]
        hidden, weight, bias = leaves
        assert hidden is not None
        assert weight is not None
        step = max(min(LOGITS_AT_ONCE // len(weight), (targets.count + 1) // 2), 1)
        total = hidden.new_zeros(())
        for first in range(0, targets.count, step):
            last = min(first + step, targets.count)
            with torch.enable_grad():
                x_bV = form.logits(hidden[first:last], weight, bias)
                loss = full_losses(x_bV, targets.slice(first, last)).sum() * share
            del x_bV
            if loss.requires_grad:
                backward(loss)  # adds to the leaves' gradients
            total += loss.detach()
        ctx.gradients = [None if x is None else x.grad for x in leaves]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] | None
        gradients, ctx.gradients = ctx.gradients, None  # given away
        if gradients is None:
            raise RuntimeError("a loss of ChunkedSoftmax has one backward pass")
        return None, None, None, *(None if x is None else x.mul_(gradient) for x in gradients)
