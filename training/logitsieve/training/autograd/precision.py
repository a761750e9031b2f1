"""The precision that losses are computed in, whatever the model's or autocast's is."""

from __future__ import annotations

import torch
from torch import Tensor


def work_dtype(weight: Tensor) -> torch.dtype:
    """float64 for float64 weights, float32 for all others."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32
