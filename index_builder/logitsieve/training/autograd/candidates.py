"""Losses over sampled candidates, which all rows share in one matrix product, or each row has.

Shape letters: C different candidates; N = P + E terms of all rows' sums, targets first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from logitsieve.api.results import Float64, Int64
from logitsieve.kernels.pool import run_slices
from logitsieve.training.autograd.batch import RaggedCandidates, SharedCandidates, Targets
from logitsieve.training.autograd.classes import ClassWeights, LogitForm, place
from logitsieve.training.kernels.ragged_sums import FORWARD, ROWS

MASKED = -1e30  # instead of -inf, whose gradient may be NaN
Matrix = NDArray[Any]
_Rest: TypeAlias = tuple[ClassWeights, Targets, RaggedCandidates]
_TERM = np.int64(32)  # low bits of a key that number its term; the id is above them


@dataclass(frozen=True)
class MergedClasses:
    ids: Tensor  # [U]: C candidates, ascending; then the other targets, ascending
    log_weights: Tensor
    slots: Tensor  # [P]: the place of each pair's target in `ids`
    hits: Tensor


def shared_losses(
    hidden_BD: Tensor, classes: ClassWeights, targets: Targets, candidates: SharedCandidates
) -> Tensor:
    """Return the losses [B]; candidates that are a row's targets are masked."""
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


@dataclass(frozen=True)
class RaggedTerms:
    """Terms [N] of a batch; pairs and offsets [B+1] delimit each row's targets and candidates."""

    pairs: Int64
    offsets: Int64
    ids: Int64
    log_weights: Float64
    coefficients: Float64
    factors: Float64

    @classmethod
    def of(cls, targets: Targets, candidates: RaggedCandidates) -> RaggedTerms:
        pairs = np.searchsorted(targets.rows.numpy(), np.arange(targets.count + 1))
        ids = torch.cat([targets.classes, candidates.ids.cpu()]).numpy()
        log_weights = np.zeros(len(ids))
        log_weights[len(targets.classes) :] = candidates.log_weights.cpu().numpy()
        offsets = np.ascontiguousarray(candidates.offsets.cpu().numpy())
        return cls(pairs, offsets, ids, log_weights, np.empty(len(ids)), np.empty(len(ids)))

    def forward(
        self,
        hidden_states: Matrix,
        weight: Matrix,
        bias: Matrix,
        logit_form: LogitForm,
        wants: bool,
    ) -> tuple[Float64, Matrix]:
        losses, d_hidden = np.empty(len(hidden_states)), np.empty_like(hidden_states)
        compute = FORWARD[hidden_states.dtype.name]

        def fill(start: int, stop: int) -> int:
            compute(
                hidden_states, weight, bias, self.pairs, self.offsets, self.ids, self.log_weights,
                logit_form.scale is not None, logit_form.absolute, wants, losses,
                self.coefficients, self.factors, d_hidden, start, stop,
            )  # fmt: skip
            return 0

        run_slices(fill, len(hidden_states), torch.get_num_threads())
        return losses, d_hidden

    def backward(
        self, hidden_states: Matrix, weight: Matrix, gradient: Float64, normalised: bool
    ) -> tuple[torch.Tensor, Matrix, Float64]:
        # Sorting keys is many times faster than an argsort.
        keys = np.sort((self.ids << _TERM) | np.arange(len(self.ids)))
        ids = keys >> _TERM
        starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1], [True]]))
        count = np.arange(len(self.pairs) - 1)
        owners = [count.repeat(np.diff(each)) for each in (self.pairs, self.offsets)]
        rows = np.concatenate(owners)
        moved = self.coefficients * gradient[rows]
        sums = np.add.reduceat((moved * np.sign(self.factors))[keys & (2**32 - 1)], starts[:-1])
        values = np.empty((len(starts) - 1, hidden_states.shape[1]), hidden_states.dtype)
        compute, weights = ROWS[hidden_states.dtype.name], moved * self.factors

        def fill(start: int, stop: int) -> int:
            compute(
                hidden_states, weight, keys, starts, rows, weights, normalised, values, start, stop
            )
            return 0

        run_slices(fill, len(values), torch.get_num_threads())
        return torch.from_numpy(ids[starts[:-1]]), values, sums


def ragged_losses(
    hidden_BD: Tensor, classes: ClassWeights, targets: Targets, candidates: RaggedCandidates
) -> Tensor:
    if not _kernel_reads(classes):
        return torch_losses(hidden_BD, classes, targets, candidates)
    rest = classes, targets, candidates
    losses: Tensor = _KernelLoss.apply(  # type: ignore[no-untyped-call]
        hidden_BD, classes.weight, classes.bias, rest
    )
    return losses


def _kernel_reads(classes: ClassWeights) -> bool:
    weight, bias = classes.weight, classes.bias
    readable = weight.device.type == "cpu" and weight.is_contiguous()
    alike = bias is None or bias.dtype == weight.dtype
    return readable and alike and weight.dtype in (torch.float32, torch.float64)


class _KernelLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_BD: Tensor, weight_VD: Tensor, bias_V1: Tensor | None, rest: _Rest
    ) -> Tensor:
        classes, targets, candidates = rest
        ctx.terms = RaggedTerms.of(targets, candidates)
        hidden_states = hidden_BD.detach().contiguous().numpy()
        weight = weight_VD.detach().numpy()
        bias = weight[:0, 0] if bias_V1 is None else bias_V1.detach().view(-1).numpy()
        ctx.normalised, wants = classes.form.scale is not None, ctx.needs_input_grad[0]
        losses, d_hidden = ctx.terms.forward(hidden_states, weight, bias, classes.form, wants)
        ctx.save_for_backward(hidden_BD, weight_VD)
        ctx.d_hidden, ctx.sparse = torch.from_numpy(d_hidden), classes.sparse
        return torch.from_numpy(losses).to(hidden_BD.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
        hidden_BD, weight_VD = ctx.saved_tensors
        d_hidden = d_weight = d_bias = None
        if ctx.needs_input_grad[0]:
            d_hidden = ctx.d_hidden * gradient_B[:, None]
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            hidden_states, weight = (
                hidden_BD.detach().contiguous().numpy(),
                weight_VD.detach().numpy(),
            )
            ids, values, sums = ctx.terms.backward(
                hidden_states, weight, gradient_B.double().numpy(), ctx.normalised
            )
            d_weight = place(ids, torch.from_numpy(values), len(weight), ctx.sparse)
            if ctx.needs_input_grad[2]:
                sums_U1 = torch.from_numpy(sums)[:, None].to(hidden_BD.dtype)
                d_bias = place(ids, sums_U1, len(weight), ctx.sparse)
        return d_hidden, d_weight, d_bias, None


def torch_losses(
    hidden_BD: Tensor, classes: ClassWeights, targets: Targets, candidates: RaggedCandidates
) -> Tensor:
    device, dtype = targets.rows.device, hidden_BD.dtype
    counts_B = candidates.offsets.to(device).diff()
    row_E = torch.arange(targets.count, device=device).repeat_interleave(counts_B)
    id_E, log_weight_E = candidates.ids.to(device), candidates.log_weights.to(device, dtype)
    row_N = torch.cat([targets.rows, row_E])
    ids, slot_N = torch.unique(torch.cat([targets.classes, id_E]), return_inverse=True)
    weight_UD, bias_U = classes.read(ids, dtype)
    x_N = (hidden_BD[row_N] * weight_UD[slot_N]).sum(-1)
    if bias_U is not None:
        x_N = x_N + bias_U[slot_N]
    if classes.form.absolute:
        x_N = x_N.abs()
    pairs = len(targets.rows)
    keys_P = targets.rows * classes.num_embeddings + targets.classes
    masked_E = torch.isin(row_E * classes.num_embeddings + id_E, keys_P)
    log_weight_E = log_weight_E.masked_fill(masked_E, -torch.inf)
    y_N = torch.cat([x_N[:pairs], x_N[pairs:] + log_weight_E])
    terms = Targets(row_N, ids[slot_N], targets.count, single=False)
    return terms.log_sums(y_N) - targets.means(x_N[:pairs])
