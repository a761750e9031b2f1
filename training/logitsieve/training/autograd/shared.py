"""The shared form: one set of candidates for all rows, one matrix product.

Shape letters: B rows, D hidden size, V classes, M candidates as drawn, C different ones, P pairs of
a row and a target, U different classes that are touched: C candidates, then targets that are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from logitsieve.training.autograd.classes import ClassWeights, Law
from logitsieve.training.autograd.rows import Rows, read_rows
from logitsieve.training.losses.proposal import Shared
from logitsieve.training.losses.targets import Targets


@dataclass(frozen=True)
class Plan:
    """Who meets whom: classes that are touched, and where the pairs' targets are among them."""

    ids: Tensor  # [U]: C candidates, ascending; then targets that are no candidates, ascending
    log_weights: Tensor  # [C]
    slots: Tensor  # [P]: the place of each pair's target in `ids`
    hits: Tensor  # [N]: pairs whose target is a candidate


def shared_losses(
    hidden_BD: Tensor, classes: ClassWeights, law: Law, targets: Targets, candidates: Shared
) -> Tensor:
    """The sampled softmax loss of each row [B]; duplicates of a candidate count."""
    plan = make_plan(targets, candidates)
    losses: Tensor = _SharedLoss.apply(  # type: ignore[no-untyped-call]
        hidden_BD, classes.weight, classes.bias, plan, targets, law, classes.sparse
    )
    return losses


def make_plan(targets: Targets, candidates: Shared) -> Plan:
    """Where candidates and targets are in one list of different classes."""
    ids, log_weights = _merge(candidates, targets.classes.device)
    place = torch.searchsorted(ids, targets.classes)
    inside = place < len(ids)
    hit = inside & (ids[torch.where(inside, place, 0)] == targets.classes) if len(ids) else inside
    only, where = torch.unique(targets.classes[~hit], return_inverse=True)
    place[~hit] = len(ids) + where
    return Plan(torch.cat([ids, only]), log_weights, place, hit.nonzero()[:, 0])


def _merge(candidates: Shared, device: torch.device) -> tuple[Tensor, Tensor]:
    """Different ids [C], ascending; weights of duplicates add up."""
    drawn, log_weights = candidates.ids.to(device), candidates.log_weights.to(device)
    ids, places = torch.unique(drawn, return_inverse=True)
    if len(ids) == len(drawn):
        return ids, torch.empty_like(log_weights).scatter_(0, places, log_weights)
    most = log_weights.amax()
    sums = torch.zeros(len(ids), dtype=torch.float64, device=device)
    sums.index_add_(0, places, (log_weights - most).double().exp())
    return ids, (sums.log() + most).to(log_weights.dtype)


class _SharedLoss(torch.autograd.Function):
    """Forward keeps [B, C] probabilities and the rows touched; backward is two products."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_BD: Tensor,
        weight_VD: Tensor,
        bias_V1: Tensor | None,
        plan: Plan,
        targets: Targets,
        law: Law,
        sparse: bool,
    ) -> Tensor:
        rows = read_rows(weight_VD, bias_V1, plan.ids, law, hidden_BD.dtype)
        x_BC, x_P = _logits(hidden_BD, rows, plan, targets)
        signs = (x_BC.sign(), x_P.sign()) if law.absolute else None
        if signs is not None:
            x_BC, x_P = x_BC.abs_(), x_P.abs_()
        x_BC += plan.log_weights.to(x_BC.dtype)
        x_BC[targets.rows[plan.hits], plan.slots[plan.hits]] = -torch.inf
        losses = normalise(x_BC, x_P, targets)
        if signs is not None:
            x_BC, x_P = x_BC.mul_(signs[0]), x_P.mul_(signs[1])
        ctx.save_for_backward(hidden_BD)
        ctx.p_BC, ctx.p_P, ctx.sparse = x_BC, x_P, sparse
        ctx.rows, ctx.plan, ctx.targets, ctx.weight = rows, plan, targets, weight_VD
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
        (hidden_BD,) = ctx.saved_tensors
        with torch.autocast(hidden_BD.device.type, enabled=False):
            return _gradients(ctx, hidden_BD, gradient_B)


def _logits(hidden_BD: Tensor, rows: Rows, plan: Plan, targets: Targets) -> tuple[Tensor, Tensor]:
    """Logits of the candidates [B, C] and of the pairs [P]."""
    candidates_CD, count = rows.classes[: len(plan.log_weights)], len(plan.log_weights)
    x_P = (targets.of(hidden_BD) * rows.classes[plan.slots]).sum(-1)
    if rows.bias is None:
        return hidden_BD @ candidates_CD.T, x_P
    x_BC = torch.addmm(rows.bias[:count], hidden_BD, candidates_CD.T)
    return x_BC, x_P + rows.bias[plan.slots]


def normalise(x_BC: Tensor, x_P: Tensor, targets: Targets) -> Tensor:
    """Losses [B] from logits of candidates and of targets.

    In place, x becomes the loss's gradient in it: probabilities, for targets less their share.
    """
    most_B = targets.most(x_P)
    if x_BC.shape[1]:
        most_B = torch.maximum(most_B, x_BC.amax(1))
    shares_P = targets.shares(x_P.dtype)
    x_BC.sub_(most_B[:, None]).exp_()
    x_P -= targets.of(most_B)
    mean_B = targets.sums(x_P * shares_P)
    x_P.exp_()
    total_B = x_BC.sum(1) + targets.sums(x_P)
    x_BC.div_(total_B[:, None])
    x_P.div_(targets.of(total_B)).sub_(shares_P)
    return total_B.log() - mean_B


def _gradients(ctx: Any, hidden_BD: Tensor, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
    plan, targets, rows = ctx.plan, ctx.targets, ctx.rows
    count = len(plan.log_weights)
    d_hidden = d_weight = d_bias = None
    if ctx.needs_input_grad[0]:
        d_hidden = ctx.p_BC @ rows.classes[:count]
        d_hidden.index_add_(0, targets.rows, ctx.p_P[:, None] * rows.classes[plan.slots])
        d_hidden *= gradient_B[:, None]
    if ctx.needs_input_grad[1]:
        weighed_BD = hidden_BD * gradient_B[:, None]
        values_UD = torch.empty_like(rows.classes)
        torch.mm(ctx.p_BC.T, weighed_BD, out=values_UD[:count])
        values_UD[count:] = 0
        values_UD.index_add_(0, plan.slots, ctx.p_P[:, None] * targets.of(weighed_BD))
        d_weight = rows.weight_gradient(values_UD, ctx.weight, ctx.sparse)
    if ctx.needs_input_grad[2]:
        values_U = torch.cat([gradient_B @ ctx.p_BC, gradient_B.new_zeros(len(plan.ids) - count)])
        values_U.index_add_(0, plan.slots, ctx.p_P * targets.of(gradient_B))
        d_bias = rows.bias_gradient(values_U, ctx.weight, ctx.sparse)
    return d_hidden, d_weight, d_bias, None, None, None, None
