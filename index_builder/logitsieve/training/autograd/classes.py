from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, normalize

from logitsieve.api.errors import InvalidRequest


def work_dtype(weight: Tensor) -> torch.dtype:
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


@dataclass(frozen=True, kw_only=True)
class LogitForm:
    """The logit: h.w + b, or with a `scale` scale * cos(h, w); its absolute value if `absolute`."""

    scale: float | None = None
    absolute: bool = False

    def __post_init__(self) -> None:
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise InvalidRequest("scale", self.scale, "a positive number, or None")

    def logits(self, hidden_states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        weight = weight.to(hidden_states.dtype)
        if self.scale is not None:
            weight = normalize(weight, dim=-1)
        x = linear(
            hidden_states, weight, None if bias is None else bias.view(-1).to(hidden_states.dtype)
        )
        return x.abs() if self.absolute else x


PLAIN = LogitForm()


class ClassWeights(nn.Embedding):
    """weight [V, D] and bias [V, 1], or no bias.

    DistributedDataParallel expects sparse gradients only for parameters directly in an nn.Embedding
    with `sparse`, so the bias must be here.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        n_classes: int,
        in_features: int,
        *,
        bias: bool,
        form: LogitForm = PLAIN,
        **options: Any,
    ) -> None:
        super().__init__(n_classes, in_features, **options)
        self.form = form
        self.register_parameter("bias", _zeros(n_classes, self.weight) if bias else None)
        for parameter in self.parameters():
            _watch_gradients(parameter)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        # Copies of parameters lose their hooks.
        for parameter in self.parameters():
            _watch_gradients(parameter)

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -(self.embedding_dim**-0.5), self.embedding_dim**-0.5)

    def tie(self, embedding: nn.Embedding) -> None:
        if embedding.weight.shape != self.weight.shape:
            got, allowed = tuple(embedding.weight.shape), tuple(self.weight.shape)
            raise InvalidRequest("embedding", got, f"weights of shape {allowed}")
        self.weight = embedding.weight
        self.sparse = embedding.sparse
        _watch_gradients(self.weight)

    def detached(self) -> tuple[Tensor, Tensor | None]:
        return self.weight.detach(), None if self.bias is None else self.bias.detach()

    def logits(self, hidden_states: Tensor) -> Tensor:
        return self.form.logits(hidden_states, self.weight, self.bias)

    def read(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        weight_UD = gather(self.weight, ids, self.sparse).to(dtype)
        if self.form.scale is not None:
            weight_UD = normalize(weight_UD, dim=-1)
        if self.bias is None:
            return weight_UD, None
        return weight_UD, gather(self.bias, ids, self.sparse).view(-1).to(dtype)


class BlockWeights(nn.Module):
    sparse = False
    bias: nn.Parameter | None
    places: Tensor  # each id's place in `order`; saved, because the weights depend on it

    def __init__(
        self,
        blocks: Sequence[tuple[int, int]],
        order: Tensor,
        *,
        bias: bool,
        form: LogitForm = PLAIN,
        **options: Any,
    ) -> None:
        super().__init__()
        self.form = form
        weights = [torch.empty(block, **options) for block in blocks]
        for each in weights:
            nn.init.uniform_(each, -(each.shape[1] ** -0.5), each.shape[1] ** -0.5)
        self.blocks = nn.ParameterList(nn.Parameter(each) for each in weights)
        self.register_parameter("bias", _zeros(len(order), weights[0]) if bias else None)
        self.register_buffer("places", order.argsort().to(weights[0].device))
        self.edges = list(accumulate((d for _, d in blocks), initial=0))

    @property
    def weight(self) -> Tensor:
        matrix: Tensor = torch.block_diag(*self.blocks)  # type: ignore[no-untyped-call]
        return matrix.index_select(0, self.places)

    def logits(self, hidden_states: Tensor) -> Tensor:
        parts = []
        for block, (first, last) in zip(self.blocks, pairwise(self.edges), strict=True):
            rows = block.to(hidden_states.dtype)
            rows = rows if self.form.scale is None else normalize(rows, dim=-1)
            parts.append(linear(hidden_states[..., first:last], rows))
        x = torch.cat(parts, -1).index_select(-1, self.places)
        x = x if self.bias is None else x + self.bias.view(-1)
        return x.abs() if self.form.absolute else x

    def tie(self, embedding: nn.Embedding) -> None:
        raise InvalidRequest("embedding", "weights for D-softmax", "none: --no-tied")


def _zeros(n_classes: int, like: Tensor) -> nn.Parameter:
    return nn.Parameter(like.new_zeros(n_classes, 1))


Classes: TypeAlias = ClassWeights | BlockWeights


def _watch_gradients(parameter: Tensor) -> None:
    parameter.register_post_accumulate_grad_hook(_mark_coalesced)  # type: ignore[no-untyped-call]


def _mark_coalesced(parameter: Tensor) -> None:
    """Mark a gradient of ascending rows as coalesced, which saves optimizers a sort."""
    gradient = parameter.grad
    if gradient is not None and gradient.is_sparse and not gradient.is_coalesced():
        ids = gradient._indices()[0]
        gradient._coalesced_(bool((ids[1:] > ids[:-1]).all()))


def place(ids: Tensor, values: Tensor, count: int, sparse: bool) -> Tensor:
    """Return a gradient [count, ...] with values [U, ...] at ids [U], dense or coalesced."""
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
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, ids: Tensor, sparse: bool) -> Tensor:
        ctx.ids, ctx.count, ctx.sparse = ids, len(parameter), sparse
        return parameter.index_select(0, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return place(ctx.ids, gradient, ctx.count, ctx.sparse), None, None


def gather(parameter: Tensor, ids: Tensor, sparse: bool) -> Tensor:
    rows: Tensor = _Gather.apply(parameter, ids, sparse)  # type: ignore[no-untyped-call]
    return rows


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Clip dense and sparse gradients, in place, to a joint 2-norm; return the norm before."""
    values = [_values(p) for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(values)
    for each in values:
        each.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0).to(each.device))
    return norm


def _values(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return gradient
    # An accumulated gradient may have duplicate rows, which must be added for the norm.
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()
