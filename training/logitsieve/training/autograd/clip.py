"""Clipping of gradients some of which are sparse, which torch's own functions refuse."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """As torch.nn.utils.clip_grad_norm_, for dense and sparse gradients together, in place.

    Returns the norm before clipping, of all gradients as one vector. Coalesces sparse gradients.
    """
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters
    values = [_values(p) for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(values, norm_type, error_if_nonfinite)
    for each in values:
        each.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0).to(each.device))
    return norm


def _values(parameter: Tensor) -> Tensor:
    """The gradient's numbers, each element's once, as they are stored."""
    gradient = parameter.grad
    assert gradient is not None  # the caller's condition
    if not gradient.is_sparse:
        return gradient
    # A gradient that was added up has duplicates: their sum is what counts.
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()
