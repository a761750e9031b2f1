"""The exact head on a GPU: the k best, log Z and draws, each in a pass over W.

Shape letters: B rows of hidden, D hidden size, K answers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.gpu.heads.draws import AnyDrawPlan, GpuDrawHead, Noise
from logitsieve.gpu.heads.head import Asked, refuse_unanswered
from logitsieve.gpu.plans import Plan
from logitsieve.gpu.plans.draws import DrawPlan
from logitsieve.gpu.plans.exact import ExactPlan
from logitsieve.gpu.plans.log_z import Edits, LogZPlan
from logitsieve.gpu.plans.logits import LogitsPlan


class GpuExact(GpuDrawHead):
    """Looks at every row of W."""

    def plan(self, hidden: Tensor, k: int) -> Plan:
        """One pass over W."""
        return ExactPlan(self._gpu.matrix, hidden, k)

    def log_z(self, hidden: Any, scale: float) -> Any:
        """[B] the logarithm of the sum of e^{scale x} over all logits of rows of hidden [B, D].

        A tensor on the GPU is answered in one there, NaN for a row that `topk` would refuse.
        """
        asked = Asked(("log Z",), self._log_z_plan, partial(_scale, scale=scale))
        if isinstance(hidden, Tensor):
            hidden = self._ready(hidden)
            told = torch.empty(len(hidden), device=hidden.device)
            self._find_tensors(asked, hidden, [told])
            return told
        found = np.empty(len(hidden), np.float32)
        self._find_arrays(asked, hidden, [found])
        refuse_unanswered(np.isnan(found))
        return found

    def logits(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """`logits64`, rounded to float32."""
        return self.logits64(hidden, ids).float()

    def logits64(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Exact logits float64 [B, M] of ids [B, M] for rows of hidden, tensors on the GPU.

        -inf for an id that is not in the vocabulary, NaN for a row that `topk` would refuse.
        Nothing is waited for. InvalidRequest names `hidden` or `ids`.
        """
        hidden = self._ready(hidden)
        if ids.is_floating_point() or ids.ndim != 2 or len(ids) != len(hidden) or not ids.numel():
            got = f"{ids.dtype} {list(ids.shape)}"
            raise InvalidRequest("ids", got, f"integers [{len(hidden)}, M], M >= 1")
        known = torch.where((ids >= 0) & (ids < self._vocab_size), ids, -1)
        known = known.to(hidden.device, torch.int32)
        with self.launching():
            plan = LogitsPlan(self._gpu.matrix, hidden.float().contiguous(), known.contiguous())
            plan.run()
        return plan.logits

    def draw_plan(
        self, hidden: Tensor, samples: int, noise: Noise, scale: Tensor, edits: Edits | None
    ) -> AnyDrawPlan:
        """One pass over W."""
        return DrawPlan(self._gpu.matrix, hidden, samples, *noise, scale, edits)

    def _log_z_plan(self, hidden: Tensor) -> LogZPlan:
        scale = torch.ones(1, dtype=torch.float64, device=hidden.device)
        return LogZPlan(self._gpu.matrix, hidden, scale)


def _scale(plan: LogZPlan, part: slice, scale: float) -> None:
    """What a plan reads besides hidden."""
    plan.scale.fill_(scale)
