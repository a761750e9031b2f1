"""The shared form: one set of candidates for all rows, one matrix product.

Shape letters: C different candidates, U different classes: C candidates, then other targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from logitsieve.training.autograd.batch import SharedCandidates, Targets
from logitsieve.training.autograd.classes import ClassWeights, LogitForm, read_rows, read_touched


@dataclass(frozen=True)
class MergedClasses:
    """Candidates and targets as one list of distinct classes, and each target's place in it."""

    ids: Tensor  # [U]: C candidates, ascending; then targets that are no candidates, ascending
    log_weights: Tensor  # [C]
    slots: Tensor  # [P]: the place of each pair's target in `ids`
    hits: Tensor  # [N]: pairs with a target among the candidates


_Rest: TypeAlias = tuple[MergedClasses, Targets, LogitForm, bool]  # the last: sparse gradients


def shared_losses(
    hidden_BD: Tensor,
    classes: ClassWeights,
    logit_form: LogitForm,
    targets: Targets,
    candidates: SharedCandidates,
) -> Tensor:
    merged = merge_classes(targets, candidates)
    losses: Tensor = _SharedLoss.apply(  # type: ignore[no-untyped-call]
        hidden_BD, classes.weight, classes.bias, (merged, targets, logit_form, classes.sparse)
    )
    return losses


def merge_classes(targets: Targets, candidates: SharedCandidates) -> MergedClasses:
    ids, log_weights = _merge(candidates, targets.classes.device)
    place = torch.searchsorted(ids, targets.classes)
    hit = place < len(ids)
    if len(ids):
        hit &= ids[torch.where(hit, place, 0)] == targets.classes
    others, other_place = torch.unique(targets.classes[~hit], return_inverse=True)
    place[~hit] = len(ids) + other_place
    return MergedClasses(torch.cat([ids, others]), log_weights, place, hit.nonzero()[:, 0])


def _merge(candidates: SharedCandidates, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return distinct ids [C], ascending, and log-weights; weights of duplicates add up."""
    drawn, log_weights = candidates.ids.to(device), candidates.log_weights.to(device)
    ids, places = torch.unique(drawn, return_inverse=True)
    if len(ids) == len(drawn):
        return ids, torch.empty_like(log_weights).scatter_(0, places, log_weights)
    most = log_weights.amax()
    sums = torch.zeros(len(ids), dtype=torch.float64, device=device)
    sums.index_add_(0, places, (log_weights - most).double().exp())
    return ids, (sums.log() + most).to(log_weights.dtype)


class _SharedLoss(torch.autograd.Function):
    """Save probabilities [B, C] and the touched rows; backward is two products."""

    @staticmethod
    def forward(
        ctx: Any, hidden_BD: Tensor, weight_VD: Tensor, bias_V1: Tensor | None, rest: _Rest
    ) -> Tensor:
        merged, targets, logit_form, sparse = rest
        rows = read_touched(weight_VD, bias_V1, merged.ids, logit_form, hidden_BD.dtype)
        candidates_DC = rows.classes[: len(merged.log_weights)].T
        x_P = (targets.of(hidden_BD) * rows.classes[merged.slots]).sum(-1)
        if rows.bias is None:
            x_BC = hidden_BD @ candidates_DC
        else:
            x_BC = torch.addmm(rows.bias[: candidates_DC.shape[1]], hidden_BD, candidates_DC)
            x_P += rows.bias[merged.slots]
        signs = (x_BC.sign(), x_P.sign()) if logit_form.absolute else None
        if signs is not None:
            x_BC, x_P = x_BC.abs_(), x_P.abs_()
        x_BC += merged.log_weights.to(x_BC.dtype)
        x_BC[targets.rows[merged.hits], merged.slots[merged.hits]] = -torch.inf
        losses = normalise(x_BC, x_P, targets)
        if signs is not None:
            x_BC, x_P = x_BC.mul_(signs[0]), x_P.mul_(signs[1])
        ctx.save_for_backward(hidden_BD)
        ctx.p_BC, ctx.p_P, ctx.sparse = x_BC, x_P, sparse
        ctx.rows, ctx.merged, ctx.targets, ctx.weight = rows, merged, targets, weight_VD
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
        (hidden_BD,) = ctx.saved_tensors
        with torch.autocast(hidden_BD.device.type, enabled=False):
            merged, targets, rows = ctx.merged, ctx.targets, ctx.rows
            count = len(merged.log_weights)
            d_hidden = d_weight = d_bias = None
            if ctx.needs_input_grad[0]:
                d_hidden = ctx.p_BC @ rows.classes[:count]
                d_hidden.index_add_(0, targets.rows, ctx.p_P[:, None] * rows.classes[merged.slots])
                d_hidden *= gradient_B[:, None]
            if ctx.needs_input_grad[1]:
                weighed_BD = hidden_BD * gradient_B[:, None]
                values_UD = torch.empty_like(rows.classes)
                torch.mm(ctx.p_BC.T, weighed_BD, out=values_UD[:count])
                values_UD[count:] = 0
                values_UD.index_add_(0, merged.slots, ctx.p_P[:, None] * targets.of(weighed_BD))
                d_weight = rows.weight_gradient(values_UD, ctx.weight, ctx.sparse)
            if ctx.needs_input_grad[2]:
                values_U = torch.cat(
                    [gradient_B @ ctx.p_BC, gradient_B.new_zeros(len(merged.ids) - count)]
                )
                values_U.index_add_(0, merged.slots, ctx.p_P * targets.of(gradient_B))
                d_bias = rows.bias_gradient(values_U, ctx.weight, ctx.sparse)
            return d_hidden, d_weight, d_bias, None


def normalise(x_BC: Tensor, x_P: Tensor, targets: Targets) -> Tensor:
    """Return losses [B] from logits; x becomes the gradient in it, probabilities less shares."""
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


def merged_logits(
    hidden_BD: Tensor,
    classes: ClassWeights,
    form: LogitForm,
    merged: MergedClasses,
    targets: Targets,
) -> tuple[Tensor, Tensor]:
    weight_UD, bias_U = read_rows(classes, merged.ids, form, hidden_BD.dtype)
    count = len(merged.log_weights)
    x_BC = hidden_BD @ weight_UD[:count].T
    x_P = (targets.of(hidden_BD) * weight_UD[merged.slots]).sum(-1)
    if bias_U is not None:
        x_BC, x_P = x_BC + bias_U[:count], x_P + bias_U[merged.slots]
    return x_BC, x_P
