"""Candidates for losses that are no softmax over them: rows of W as autograd's own operation.

Shape letters: B rows, D hidden size, V classes, C different candidates, P pairs of a row and a
target, U different classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from logitsieve.training.classes import ClassWeights, Law
from logitsieve.training.rows import place
from logitsieve.training.shared import Plan
from logitsieve.training.targets import Targets


class _Gather(torch.autograd.Function):
    """Rows `ids`, each once, of a parameter [V, n]; their gradient is sparse if asked."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, ids: Tensor, sparse: bool) -> Tensor:
        ctx.ids, ctx.count, ctx.sparse = ids, len(parameter), sparse
        return parameter.index_select(0, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return place(ctx.ids, gradient, ctx.count, ctx.sparse), None, None


def plan_logits(
    hidden_BD: Tensor, classes: ClassWeights, law: Law, plan: Plan, targets: Targets
) -> tuple[Tensor, Tensor]:
    """Logits of the candidates [B, C] and of the targets [P], without log-weights or masks."""
    weight_UD = _gather(classes.weight, plan.ids, classes.sparse).to(hidden_BD.dtype)
    if law.scale is not None:
        weight_UD = functional.normalize(weight_UD, dim=-1)
    count = len(plan.log_weights)
    x_BC = hidden_BD @ weight_UD[:count].T
    x_P = (targets.of(hidden_BD) * weight_UD[plan.slots]).sum(-1)
    if classes.bias is not None:
        bias_U = _gather(classes.bias, plan.ids, classes.sparse).view(-1).to(hidden_BD.dtype)
        x_BC, x_P = x_BC + bias_U[:count], x_P + bias_U[plan.slots]
    return x_BC, x_P


def _gather(parameter: Tensor, ids: Tensor, sparse: bool) -> Tensor:
    rows: Tensor = _Gather.apply(parameter, ids, sparse)  # type: ignore[no-untyped-call]
    return rows
