"""The rows of W that a step touches, and the gradients of those alone.

Shape letters: V classes, D hidden size, U rows that are touched, each once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from logitsieve.training.autograd.classes import Law
from logitsieve.training.kernels.ragged import LEAST_NORM


@dataclass(frozen=True)
class Rows:
    """ids [U] in any order; classes [U, D] as logits are made of; bias [U] or None.

    inverse: 1 / |w| [U] where classes are normalised rows, else None.
    """

    ids: Tensor
    classes: Tensor
    inverse: Tensor | None
    bias: Tensor | None

    def weight_gradient(self, values_UD: Tensor, weight_VD: Tensor, sparse: bool) -> Tensor:
        """The gradient of weight from that of `classes`, which it overwrites."""
        if self.inverse is not None:
            along_U = (values_UD * self.classes).sum(-1)
            values_UD.sub_(self.classes * along_U[:, None]).mul_(self.inverse[:, None])
        return place(self.ids, values_UD.to(weight_VD.dtype), len(weight_VD), sparse)

    def bias_gradient(self, values_U: Tensor, weight_VD: Tensor, sparse: bool) -> Tensor:
        """The gradient of bias [V, 1]."""
        return place(self.ids, values_U[:, None].to(weight_VD.dtype), len(weight_VD), sparse)


def read_rows(
    weight_VD: Tensor, bias_V1: Tensor | None, ids: Tensor, law: Law, dtype: torch.dtype
) -> Rows:
    """Gather rows `ids` in precision `dtype`, normalised if the law is."""
    classes = weight_VD.detach().index_select(0, ids).to(dtype)
    bias = None if bias_V1 is None else bias_V1.detach().view(-1).index_select(0, ids).to(dtype)
    if law.scale is None:
        return Rows(ids, classes, None, bias)
    inverse = 1 / classes.norm(dim=-1).clamp_(min=LEAST_NORM)
    return Rows(ids, classes.mul_(inverse[:, None]), inverse, bias)


def place(ids: Tensor, values: Tensor, count: int, sparse: bool) -> Tensor:
    """Gradient [count, ...] with values [U, ...] at different ids [U]; coalesced, or dense."""
    size = (count, *values.shape[1:])
    if not sparse:
        return values.new_zeros(size).index_copy_(0, ids, values)
    ordered, order = ids.sort()
    if not torch.equal(ordered, ids):
        values = values.index_select(0, order)
    return torch.sparse_coo_tensor(
        ordered[None], values, size, is_coalesced=True, check_invariants=False
    )


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


def gather(parameter: Tensor, ids: Tensor, sparse: bool) -> Tensor:
    """Rows `ids`, each once, of a parameter [V, n]; their gradient is sparse if asked."""
    rows: Tensor = _Gather.apply(parameter, ids, sparse)  # type: ignore[no-untyped-call]
    return rows
