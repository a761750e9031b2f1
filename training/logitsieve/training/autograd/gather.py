"""Candidates for losses that are no softmax over them: rows of W as autograd's own operation.

Shape letters: B rows, D hidden size, V classes, C different candidates, P pairs of a row and a
target, U different classes.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from logitsieve.training.autograd.classes import ClassWeights, Law
from logitsieve.training.autograd.rows import gather
from logitsieve.training.autograd.shared import Plan
from logitsieve.training.losses.targets import Targets


def plan_logits(
    hidden_BD: Tensor, classes: ClassWeights, law: Law, plan: Plan, targets: Targets
) -> tuple[Tensor, Tensor]:
    """Logits of the candidates [B, C] and of the targets [P], without log-weights or masks."""
    weight_UD = gather(classes.weight, plan.ids, classes.sparse).to(hidden_BD.dtype)
    if law.scale is not None:
        weight_UD = functional.normalize(weight_UD, dim=-1)
    count = len(plan.log_weights)
    x_BC = hidden_BD @ weight_UD[:count].T
    x_P = (targets.of(hidden_BD) * weight_UD[plan.slots]).sum(-1)
    if classes.bias is not None:
        bias_U = gather(classes.bias, plan.ids, classes.sparse).view(-1).to(hidden_BD.dtype)
        x_BC, x_P = x_BC + bias_U[:count], x_P + bias_U[plan.slots]
    return x_BC, x_P
