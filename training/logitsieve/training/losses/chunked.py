"""The full softmax without its logits: rows in chunks, gradients taken as soon as there are logits.

As Liger Kernel's fused linear cross-entropy (Hsu et al. 2024). It has the products of the ordinary
loss and no more, and its chunk of logits is written over and over instead of allocated: the strong
baseline, at least as fast as full.py.
Shape letters: B rows, D hidden size, V classes, b rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from logitsieve.training.losses.full import FullSoftmax
from logitsieve.training.losses.targets import Targets

_CHUNK = 1 << 25  # logits at once: more rows make fewer passes over the gradient [V, D]


class ChunkedSoftmax(FullSoftmax):
    """FullSoftmax's loss and gradients; never holds logits of more than half of the rows."""

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        """The losses [B]; what weighs them is not known yet, so backward takes logits again."""
        weight, bias = self.full_classes()
        losses: Tensor = _Losses.apply(  # type: ignore[no-untyped-call]
            hidden_BD, weight, bias, targets, self.law.absolute
        )
        return losses

    def total(self, hidden_BD: Tensor, targets: Targets, share: float) -> Tensor:
        """The sum of the losses, times `share`, whose gradients are taken together with it."""
        weight, bias = self.full_classes()
        total: Tensor = _Total.apply(  # type: ignore[no-untyped-call]
            hidden_BD, weight, bias, targets, self.law.absolute, share
        )
        return total


@dataclass(frozen=True)
class _Problem:
    """hidden [B, D], weight [V, D], bias [V] or None, and the rows' targets."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Targets
    absolute: bool

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(Rows, losses [b], their gradients in the logits [b, V], which the next overwrite)."""
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
        self, shares_B: Tensor, wanted: tuple[bool, ...]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """(Losses [B], gradients of sum(shares * losses) in hidden, weight, bias where wanted)."""
        losses_B = torch.empty_like(shares_B)
        inputs = (self.hidden, self.weight, self.bias)
        d_hidden, d_weight, d_bias = (
            torch.zeros_like(x) if x is not None and w else None
            for x, w in zip(inputs, wanted, strict=True)
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
    """Losses [b] from logits [b, V], which become the losses' gradients in them."""
    shares = targets.shares(x_bV.dtype)
    mean = targets.sums(x_bV[targets.rows, targets.classes] * shares)
    most = x_bV.amax(1)
    total = x_bV.sub_(most[:, None]).exp_().sum(1)
    x_bV.div_(total[:, None])
    x_bV.index_put_((targets.rows, targets.classes), -shares, accumulate=True)
    return total.log() + most - mean


class _Losses(torch.autograd.Function):
    """The rows' losses; backward takes the logits a second time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Targets,
        absolute: bool,
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.targets, ctx.absolute = targets, absolute
        problem = _Problem(hidden, weight, bias, targets, absolute)
        return torch.cat([losses for _, losses, _ in problem.chunks()])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        problem = _Problem(hidden, weight, bias, ctx.targets, ctx.absolute)
        with torch.autocast(gradient_B.device.type, enabled=False):
            _, gradients = problem.gradients(gradient_B, ctx.needs_input_grad[:3])
        return *gradients, None, None


class _Total(torch.autograd.Function):
    """The sum of the losses times a share; backward has only to hand over the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Targets,
        absolute: bool,
        share: float,
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.targets, ctx.absolute = targets, absolute
        ctx.shares_B = hidden.new_full((len(hidden),), share)
        problem = _Problem(hidden, weight, bias, targets, absolute)
        losses_B, ctx.gradients = problem.gradients(ctx.shares_B, ctx.needs_input_grad[:3])
        return losses_B.sum() * share

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(gradient.device.type, enabled=False):
            gradients = _handed_over(ctx)
        if gradient.device.type != "cpu" or float(gradient) != 1:
            gradients = [None if each is None else each.mul_(gradient) for each in gradients]
        return *gradients, None, None, None


def _handed_over(ctx: Any) -> list[Tensor | None]:
    """Forward's gradients, which whoever takes them may keep; taken again for a second backward."""
    hidden, weight, bias = ctx.saved_tensors
    gradients: list[Tensor | None] | None
    gradients, ctx.gradients = ctx.gradients, None
    if gradients is None:
        problem = _Problem(hidden, weight, bias, ctx.targets, ctx.absolute)
        _, gradients = problem.gradients(ctx.shares_B, ctx.needs_input_grad[:3])
    return gradients
