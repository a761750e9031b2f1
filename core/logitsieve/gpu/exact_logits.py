"""Exact logits of named ids: float64 sums in the order that defines a logit.

It is that of kernels/simd/dots.py: element d in sum d mod 16, then adjacent sums added in pairs,
then the bias. The product of two float32 is exact in float64, so neither fused multiply-add nor the
device changes a bit; PyTorch's CPU device computes the same sums by tensor operations.

Shape letters: B rows of hidden, D hidden size, V vocabulary, M ids of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton import cdiv

from logitsieve.gpu.kernels import exact_logits_kernel

LANES = 16
BLOCK = 32  # ids per program


def exact_logits(weight: Tensor, bias: Tensor, hidden: Tensor, ids: Tensor) -> Tensor:
    """Return float64 [B, M] logits of int32 ids [B, M] for float32 hidden [B, D].

    -inf for a negative id. `weight` [V, D] is float32, float16 or bfloat16; `ids` may be expanded
    from one row.
    """
    if hidden.is_cuda:
        return launch_exact_logits(weight, bias, hidden, ids)
    known, rows = ids >= 0, ids.clamp(min=0).long()
    sums = torch.zeros((*ids.shape, LANES), dtype=torch.float64)
    for start in range(0, hidden.shape[1], LANES):
        values = weight[:, start : start + LANES][rows].double()
        sums[..., : values.shape[2]] += values * hidden[:, None, start : start + LANES].double()
    while sums.shape[2] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    return torch.where(known, sums[..., 0] + bias.double()[rows], -torch.inf)


def launch_exact_logits(weight: Tensor, bias: Tensor, hidden: Tensor, ids: Tensor) -> Tensor:
    """Run the kernel for `exact_logits`."""
    rows, count = ids.shape
    if weight.dtype == torch.bfloat16:
        weight = weight.view(torch.int16)  # Triton's interpreter cannot compute in bfloat16
    logits = torch.empty((rows, count), dtype=torch.float64, device=hidden.device)
    exact_logits_kernel[(rows * cdiv(count, BLOCK),)](
        weight, bias, hidden.contiguous(), ids, logits,
        hidden.shape[1], count, ids.stride(0), ids.stride(1), LANES=LANES, BLOCK=BLOCK,
    )  # fmt: skip
    return logits
