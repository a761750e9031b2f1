"""The base of all losses, and the full softmax.

Conventions are those of torch.nn.AdaptiveLogSoftmaxWithLoss and torch.nn.functional.cross_entropy.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import Targets, check_hidden, read_batch
from logitsieve.training.autograd.classes import (
    Classes,
    ClassWeights,
    LogitForm,
    gather,
    work_dtype,
)

Reduction = Literal["mean", "sum", "none"]
LOGITS_AT_ONCE = 1 << 24


class LossOptions(TypedDict, total=False):
    """Options of every loss.

    bias: ignored with a scale. scale: x = scale * cos(h, w) instead of h.w + b. absolute: |x|
    instead of x. sparse: whether classes have sparse gradients.
    """

    bias: bool
    scale: float | None
    absolute: bool
    ignore_index: int
    reduction: Reduction
    sparse: bool
    device: torch.device | str | None
    dtype: torch.dtype | None


@dataclass(frozen=True)
class Export:
    """weight [V, D] and bias [V] for `build`: `weight, bias = loss.export()`.

    normalized_contexts: the softmax is of h / |h|, so captured and served contexts must be
    normalised.
    """

    weight: Tensor
    bias: Tensor
    normalized_contexts: bool

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.weight, self.bias))


class SoftmaxLoss(nn.Module, ABC):
    """A loss of hidden_states [..., D] and target [...] or [..., L] over V classes.

    A row's L targets are padded with `ignore_index`; its loss is log Z less their mean logit. Rows
    without a target add 0, and do not count in a mean. Raises InvalidRequest.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        bias: bool = True,
        scale: float | None = None,
        absolute: bool = False,
        classes: Classes | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        sparse: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        whole("in_features", in_features, 1)
        whole("n_classes", n_classes, 2)
        if reduction not in ("mean", "sum", "none"):
            raise InvalidRequest("reduction", reduction, "mean, sum, none")
        self.in_features = in_features
        self.n_classes = n_classes
        self.ignore_index = ignore_index
        self.reduction = reduction
        form = LogitForm(scale=scale, absolute=absolute)
        self.classes: Classes = classes or ClassWeights(
            n_classes,
            in_features,
            bias=bias and scale is None,
            form=form,
            sparse=sparse,
            device=device,
            dtype=dtype,
        )

    def forward(self, hidden_states: Tensor, target: Tensor) -> Tensor:
        batch = read_batch(
            hidden_states, target, self.in_features, self.n_classes, self.ignore_index
        )
        with torch.autocast(hidden_states.device.type, enabled=False):
            prepared = self.prepare(batch.hidden_states)
            if batch.targets.count == 0:
                return self._nothing(prepared, hidden_states.shape[:-1])
            if self.reduction == "none":
                return batch.spread(self.losses(prepared, batch.targets), hidden_states.shape[:-1])
            count = batch.targets.count if self.reduction == "mean" else 1
            return self.total(prepared, batch.targets, 1 / count)

    def _nothing(self, prepared: Tensor, shape: torch.Size) -> Tensor:
        # Every parameter gets a gradient of no rows, as DistributedDataParallel expects one.
        none = torch.empty(0, dtype=torch.int64, device=prepared.device)
        parameters = self.classes.parameters()
        empty = [gather(each, none, self.classes.sparse).sum() for each in parameters]
        zero = prepared.sum() + torch.stack(empty).sum().to(prepared.dtype)
        return zero.expand(shape) if self.reduction == "none" else zero

    @abstractmethod
    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        """Return the loss of each row [B], given rows from `prepare`."""

    def total(self, hidden_BD: Tensor, targets: Targets, share: float) -> Tensor:
        """Return `share` times the sum of the rows' losses."""
        return self.losses(hidden_BD, targets).sum() * share

    def prepare(self, hidden_states: Tensor) -> Tensor:
        """Return hidden states in the loss's precision, normalised to `scale` if there is one."""
        hidden_states = hidden_states.to(work_dtype(next(self.classes.parameters())))
        if (scale := self.classes.form.scale) is None:
            return hidden_states
        return functional.normalize(hidden_states, dim=-1) * scale

    def tie(self, embedding: nn.Embedding) -> None:
        self.classes.tie(embedding)

    def track(
        self, optimizer: Optimizer, *, every: int = 50, growth: float = 1.0
    ) -> RemovableHandle | None:
        """Update the loss's index after steps of `optimizer`; None without an index."""
        return None

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Return all logits [..., V]."""
        check_hidden(hidden_states, self.in_features)
        with torch.autocast(hidden_states.device.type, enabled=False):
            return self.classes.logits(self.prepare(hidden_states))

    def log_prob(self, hidden_states: Tensor) -> Tensor:
        """Return log-probabilities [..., V] of the full softmax."""
        return self.logits(hidden_states).log_softmax(-1)

    def predict(self, hidden_states: Tensor) -> Tensor:
        """Return the most likely class of each row [...]."""
        return self.logits(hidden_states).argmax(-1)

    @torch.no_grad()
    def full_loss(self, hidden_states: Tensor, target: Tensor) -> Tensor:
        """Return the full softmax's loss, without gradient, by chunks of logits."""
        batch = read_batch(
            hidden_states, target, self.in_features, self.n_classes, self.ignore_index
        )
        prepared, count = self.prepare(batch.hidden_states), batch.targets.count
        step = max(LOGITS_AT_ONCE // self.n_classes, 1)
        parts = [prepared.new_zeros(0)]
        with torch.autocast(hidden_states.device.type, enabled=False):
            for i in range(0, count, step):
                targets = batch.targets.slice(i, min(i + step, count))
                parts.append(full_losses(self.classes.logits(prepared[i : i + step]), targets))
        losses = torch.cat(parts)
        if self.reduction == "none":
            return batch.spread(losses, hidden_states.shape[:-1])
        return losses.sum() / (max(count, 1) if self.reduction == "mean" else 1)

    @property
    def unservable(self) -> str | None:
        """The name of the model if it is not a softmax of h.w + b; then `export` raises."""
        return "absolute logits" if self.classes.form.absolute else None

    @torch.no_grad()
    def export(self) -> Export:
        """Return copies of the trained softmax. InvalidRequest if `unservable`."""
        if self.unservable is not None:
            allowed = "a softmax of h.w + b; any other cannot be served"
            raise InvalidRequest("export", self.unservable, allowed)
        scale, bias = self.classes.form.scale, self.classes.bias
        dtype = work_dtype(self.classes.weight)
        weight = self.classes.weight.to(dtype, copy=True)
        if scale is not None:
            weight = functional.normalize(weight, dim=-1) * scale
        copied = (
            weight.new_zeros(self.n_classes) if bias is None else bias.view(-1).to(dtype, copy=True)
        )
        return Export(weight, copied, normalized_contexts=scale is not None)


def full_losses(x_BV: Tensor, targets: Targets) -> Tensor:
    """Return the log-sum-exp of each row's logits [B, V], less the mean logit of its targets."""
    if targets.single:
        return functional.cross_entropy(x_BV, targets.classes, reduction="none")
    return x_BV.logsumexp(-1) - targets.means(x_BV[targets.rows, targets.classes])


class FullSoftmax(SoftmaxLoss):
    """Cross-entropy over all classes, by logits [B, V] and a dense gradient [V, D]."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        classes: Classes | None = None,
        **common: Unpack[LossOptions],
    ) -> None:
        if common.setdefault("sparse", False):
            raise InvalidRequest("sparse", True, "False: every class has a gradient in each step")
        super().__init__(in_features, n_classes, classes=classes, **common)

    def losses(self, hidden_BD: Tensor, targets: Targets) -> Tensor:
        return full_losses(self.classes.logits(hidden_BD), targets)


class ChunkedSoftmax(FullSoftmax):
    """FullSoftmax with logits of at most half of the rows in memory.

    Like Liger Kernel's fused linear cross-entropy (Hsu et al. 2024), the forward pass computes
    gradients, chunk by chunk, unless the reduction is "none".
    """

    def total(self, hidden_BD: Tensor, targets: Targets, share: float) -> Tensor:
        weight, bias = self.classes.weight, self.classes.bias
        result: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
            self.classes.form, targets, share, hidden_BD, weight, bias
        )
        return result


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, form: LogitForm, targets: Targets, share: float, *inputs: Tensor | None
    ) -> Tensor:
        leaves = [
            None if x is None else x.detach().requires_grad_(needed)
            for x, needed in zip(inputs, ctx.needs_input_grad[3:], strict=True)
        ]
        hidden_states, weight, bias = leaves
        assert hidden_states is not None
        assert weight is not None
        step = max(min(LOGITS_AT_ONCE // len(weight), (targets.count + 1) // 2), 1)
        total = hidden_states.new_zeros(())
        for first in range(0, targets.count, step):
            last = min(first + step, targets.count)
            with torch.enable_grad():
                x_bV = form.logits(hidden_states[first:last], weight, bias)
                loss = full_losses(x_bV, targets.slice(first, last)).sum() * share
            del x_bV
            if loss.requires_grad:
                backward(loss)  # adds to the leaves' gradients
            total += loss.detach()
        ctx.gradients = [None if x is None else x.grad for x in leaves]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] | None
        gradients, ctx.gradients = ctx.gradients, None  # they are changed in place
        if gradients is None:
            raise RuntimeError("a loss of ChunkedSoftmax has one backward pass")
        return None, None, None, *(None if x is None else x.mul_(gradient) for x in gradients)
