"""Clipping of dense and sparse gradients together; torch's own functions refuse sparse ones."""

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
    """Clip dense and sparse gradients in place, as torch.nn.utils.clip_grad_norm_ does dense ones.

    Returns the norm before clipping, of all gradients as one vector. Coalesces sparse gradients.
    """
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters
    values = [_values(p) for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(values, norm_type, error_if_nonfinite)
    for each in values:
        each.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0).to(each.device))
    return norm


def _values(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None  # the caller's condition
    if not gradient.is_sparse:
        return gradient
    # A gradient that was accumulated has duplicates: their sum counts.
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()
