"""The rows of W and the bias, kept so that their gradients can be sparse everywhere in PyTorch.

Shape letters: V classes, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from logitsieve.api.errors import InvalidRequest


@dataclass(frozen=True, kw_only=True)
class Law:
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
