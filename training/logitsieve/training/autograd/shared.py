"""The shared form: one set of candidates for all rows, one matrix product.

Shape letters: C different candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from logitsieve.training.autograd.batch import SharedCandidates, Targets
from logitsieve.training.autograd.classes import ClassWeights

MASKED = -1e30  # a logit without a share; -inf has no gradient


@dataclass(frozen=True)
class MergedClasses:
    """Candidates and targets as one list of distinct classes, and each target's place in it."""

    ids: Tensor  # [U]: C candidates, ascending; then targets that are no candidates, ascending
    log_weights: Tensor  # [C]
    slots: Tensor  # [P]: the place of each pair's target in `ids`
    hits: Tensor  # [N]: pairs with a target among the candidates


def shared_losses(
    hidden_BD: Tensor, classes: ClassWeights, targets: Targets, candidates: SharedCandidates
) -> Tensor:
    """Return the losses [B]: candidates that are a row's targets are masked for it."""
    merged = merge_classes(targets, candidates)
    x_BC, x_P = merged_logits(hidden_BD, classes, merged, targets)
    x_BC += merged.log_weights.to(x_BC.dtype)
    x_BC[targets.rows[merged.hits], merged.slots[merged.hits]] = MASKED
    return torch.logaddexp(x_BC.logsumexp(1), targets.log_sums(x_P)) - targets.means(x_P)


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
    drawn, log_weights = candidates.ids.to(device), candidates.log_weights.to(device)
    ids, places = torch.unique(drawn, return_inverse=True)
    if len(ids) == len(drawn):
        return ids, torch.empty_like(log_weights).scatter_(0, places, log_weights)
    most = log_weights.amax()
    sums = torch.zeros(len(ids), dtype=torch.float64, device=device)
    sums.index_add_(0, places, (log_weights - most).double().exp())
    return ids, (sums.log() + most).to(log_weights.dtype)


def merged_logits(
    hidden_BD: Tensor, classes: ClassWeights, merged: MergedClasses, targets: Targets
) -> tuple[Tensor, Tensor]:
    weight_UD, bias_U = classes.read(merged.ids, hidden_BD.dtype)
    count = len(merged.log_weights)
    x_BC = linear(hidden_BD, weight_UD[:count], None if bias_U is None else bias_U[:count])
    x_P = (targets.of(hidden_BD) * weight_UD.index_select(0, merged.slots)).sum(-1)
    if bias_U is not None:
        x_P = x_P + bias_U.index_select(0, merged.slots)
    return (x_BC.abs(), x_P.abs()) if classes.form.absolute else (x_BC, x_P)
