"""Rows that a plan passes on, answered by another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from logitsieve.gpu.kernels.status import PASSED_ON
from logitsieve.gpu.plans import Found, Plan, empty_found

# A plan for the rows of hidden [B, D] whose status [B] is PASSED_ON, of (hidden, k, found, status).
Fallback = Callable[[Tensor, int, Found, Tensor], Plan]


class FallbackPlan:
    """Passes all rows on."""

    def __init__(self, hidden: Tensor, k: int, fallback: Fallback) -> None:
        self.hidden, self.found = hidden, empty_found(len(hidden), k, hidden.device)
        self._status = torch.empty(len(hidden), dtype=torch.int32, device=hidden.device)
        self._fallback = fallback(hidden, k, self.found, self._status)

    def run(self) -> None:
        """The fallback's kernels."""
        self._status.fill_(PASSED_ON.value)
        self._fallback.run()
