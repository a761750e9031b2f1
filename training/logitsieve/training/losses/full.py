"""The full softmax, dense and in chunks of rows.

The chunked form is Liger Kernel's fused linear cross-entropy (Hsu et al. 2024): gradients are taken
from each chunk of logits before the next overwrites it.

Shape letters: B rows, D hidden size, V classes, b rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import Targets
from logitsieve.training.autograd.classes import Classes
from logitsieve.training.losses.loss import LossOptions, SoftmaxLoss, full_losses


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
        x_BV = self.full_logits(hidden_BD)
        if targets.single:
            return cross_entropy(x_BV, targets.classes, reduction="none")
        return full_losses(x_BV, targets)


_CHUNK = 1 << 25  # logits at once: more rows make fewer passes over the gradient [V, D]


class ChunkedSoftmax(FullSoftmax):
    """FullSoftmax's loss and gradients; never holds logits of more than half of the rows.

    Gradients of a sum or a mean are computed in the forward pass; reduction "none" is FullSoftmax.
    """

    def total(self, hidden_BD: Tensor, targets: Targets, share: float) -> Tensor:
        result: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
            hidden_BD, *self.full_classes(), (targets, self.logit_form.absolute), share
        )
        return result


@dataclass(frozen=True)
class _Problem:
    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Targets
    absolute: bool

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield rows, losses [b] and gradients in the logits [b, V], which the next overwrites."""
        count, classes = len(self.hidden), len(self.weight)
        step = max(min(_CHUNK // classes, (count + 1) // 2), 1)
        buffer = self.hidden.new_empty(step, classes)
        for first in range(0, count, step):
            rows = slice(first, min(first + step, count))
            x_bV = self._logits(self.hidden[rows], buffer[: rows.stop - first])
            signs = x_bV.sign() if self.absolute else None
            if signs is not None:
                x_bV.abs_()
            losses = _normalise_all(x_bV, self.targets.slice(rows.start, rows.stop))
            if signs is not None:
                x_bV.mul_(signs)
            yield rows, losses, x_bV

    def _logits(self, hidden_bD: Tensor, out_bV: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(hidden_bD, self.weight.T, out=out_bV)
        return torch.addmm(self.bias, hidden_bD, self.weight.T, out=out_bV)

    def gradients(
        self, shares_B: Tensor, needed: tuple[bool, ...]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return losses [B], and gradients of sum(shares * losses) in the inputs that need them."""
        losses_B = torch.empty_like(shares_B)
        inputs = (self.hidden, self.weight, self.bias)
        d_hidden, d_weight, d_bias = (
            torch.zeros_like(x) if x is not None and w else None
            for x, w in zip(inputs, needed, strict=True)
        )
        weighed_BD = self.hidden * shares_B[:, None]
        for rows, losses, g_bV in self.chunks():
            losses_B[rows] = losses
            if d_hidden is not None:
                torch.mm(g_bV, self.weight, out=d_hidden[rows])
            if d_weight is not None:
                d_weight.addmm_(g_bV.T, weighed_BD[rows], beta=0 if rows.start == 0 else 1)
            if d_bias is not None:
                d_bias.addmv_(g_bV.T, shares_B[rows])
        if d_hidden is not None:
            d_hidden.mul_(shares_B[:, None])
        return losses_B, [d_hidden, d_weight, d_bias]


def _normalise_all(x_bV: Tensor, targets: Targets) -> Tensor:
    """Return losses [b] from logits [b, V], which become their gradients."""
    shares = targets.shares(x_bV.dtype)
    mean = targets.sums(x_bV[targets.rows, targets.classes] * shares)
    most = x_bV.amax(1)
    total = x_bV.sub_(most[:, None]).exp_().sum(1)
    x_bV.div_(total[:, None])
    x_bV.index_put_((targets.rows, targets.classes), -shares, accumulate=True)
    return total.log() + most - mean


class _Chunked(torch.autograd.Function):
    """The sum of losses times `share`; its gradients can be used once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rest: tuple[Targets, bool],
        share: float,
    ) -> Tensor:
        shares_B = hidden.new_full((len(hidden),), share)
        problem = _Problem(hidden, weight, bias, *rest)
        losses_B, ctx.gradients = problem.gradients(shares_B, ctx.needs_input_grad[:3])
        return losses_B.sum() * share

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] | None
        gradients, ctx.gradients = ctx.gradients, None  # given away
        if gradients is None:
            raise RuntimeError("a loss of ChunkedSoftmax has one backward pass")
        if gradient.device.type != "cpu" or float(gradient) != 1:
            gradients = [None if each is None else each.mul_(gradient) for each in gradients]
        return *gradients, None, None
