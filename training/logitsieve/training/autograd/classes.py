"""The precision that losses are computed in, whatever the model's or autocast's is.
=====
The rows of W and the bias, kept so that their gradients can be sparse everywhere in PyTorch.

Shape letters: V classes, D hidden size.

=====
The rows of W that a step touches, and the gradients of those alone.

Shape letters: V classes, D hidden size, U rows that are touched, each once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.kernels.ragged import LEAST_NORM


def work_dtype(weight: Tensor) -> torch.dtype:
    """float64 for float64 weights, float32 for all others."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


@dataclass(frozen=True, kw_only=True)
class LogitForm:
    """What a class's logit is: h.w + b, or scale * cos(h, w) where `scale` is given.

    With `absolute` it is the absolute value of that: what the quadratic kernel is compared with.
    """

    scale: float | None = None
    absolute: bool = False

    def __post_init__(self) -> None:
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise InvalidRequest("scale", self.scale, "a positive number, or None")


class Classes(Protocol):
    """What a loss asks of its classes: a module with weight [V, D] and bias [V, 1] or None."""

    sparse: bool
    bias: nn.Parameter | None

    @property
    def weight(self) -> Tensor:
        """[V, D]."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """As nn.Module's."""

    def tie(self, embedding: nn.Embedding) -> None:
        """Use the weights of `embedding`."""


class ClassWeights(nn.Embedding):
    """weight [V, D] and bias [V, 1], or no bias.

    DistributedDataParallel expects sparse gradients of an nn.Embedding with `sparse` set, and of
    nothing else: of all the parameters directly inside it, which is why the bias is here.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        n_classes: int,
        in_features: int,
        *,
        bias: bool,
        sparse: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(n_classes, in_features, sparse=sparse, device=device, dtype=dtype)
        zeros = torch.zeros(n_classes, 1, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if zeros is None else nn.Parameter(zeros))
        for parameter in self.parameters():
            _watch_gradients(parameter)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, whose parameters come without their hooks."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for parameter in self.parameters():
            _watch_gradients(parameter)

    def reset_parameters(self) -> None:
        """Draw weights as nn.Linear does: uniform within 1 / sqrt D."""
        nn.init.uniform_(self.weight, -(self.embedding_dim**-0.5), self.embedding_dim**-0.5)

    def tie(self, embedding: nn.Embedding) -> None:
        """Use the weights of `embedding` [V, D]; gradients are sparse if its own are."""
        if embedding.weight.shape != self.weight.shape:
            got, allowed = tuple(embedding.weight.shape), tuple(self.weight.shape)
            raise InvalidRequest("embedding", got, f"weights of shape {allowed}")
        self.weight = embedding.weight
        self.sparse = embedding.sparse
        _watch_gradients(self.weight)

    def detached(self) -> tuple[Tensor, Tensor | None]:
        """weight [V, D] and bias [V, 1] or None, as they are now, without gradients."""
        return self.weight.detach(), None if self.bias is None else self.bias.detach()


def _watch_gradients(parameter: Tensor) -> None:
    parameter.register_post_accumulate_grad_hook(_tell_coalesced)  # type: ignore[no-untyped-call]


def _tell_coalesced(parameter: Tensor) -> None:
    """Mark a gradient of ascending rows as coalesced: torch forgets it when it stores a gradient.

    Otherwise SparseAdam and Adagrad would sort and copy it in every step.
    """
    gradient = parameter.grad
    if gradient is not None and gradient.is_sparse and not gradient.is_coalesced():
        ids = gradient._indices()[0]
        gradient._coalesced_(bool((ids[1:] > ids[:-1]).all()))


@dataclass(frozen=True)
class TouchedRows:
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


def read_touched(
    weight_VD: Tensor,
    bias_V1: Tensor | None,
    ids: Tensor,
    logit_form: LogitForm,
    dtype: torch.dtype,
) -> TouchedRows:
    """Gather rows `ids` in precision `dtype`, normalised if the law is."""
    classes = weight_VD.detach().index_select(0, ids).to(dtype)
    bias = None if bias_V1 is None else bias_V1.detach().view(-1).index_select(0, ids).to(dtype)
    if logit_form.scale is None:
        return TouchedRows(ids, classes, None, bias)
    inverse = 1 / classes.norm(dim=-1).clamp_(min=LEAST_NORM)
    return TouchedRows(ids, classes.mul_(inverse[:, None]), inverse, bias)


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
