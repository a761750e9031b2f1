"""The certified head on a GPU: the k best, draws and log Z, each in a pass over the sketch.

Shape letters: B rows of hidden, D hidden size, K answers, N draws.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from torch import Tensor

from logitsieve.api.results import ArrayLike, Bounds
from logitsieve.gpu.heads.draws import AnyDrawPlan, GpuDrawHead, HostEdits, Noise
from logitsieve.gpu.plans import Plan
from logitsieve.gpu.plans.certified import CertifiedPlan
from logitsieve.gpu.plans.certified_draws import CertifiedDrawPlan
from logitsieve.gpu.plans.log_z import Edits
from logitsieve.heads.certified import CertifiedHead


class GpuCertified(GpuDrawHead):
    """Bounds every row of W, and computes those whose bound leaves a doubt."""

    log_z_of_row: ClassVar[tuple[int, ...]] = (3,)

    def plan(self, hidden: Tensor, k: int) -> Plan:
        """One pass over the sketch."""
        return CertifiedPlan(self._gpu.matrix, self._gpu.sketch, hidden, k)

    def bounds(self, hidden: ArrayLike, k: int = 1) -> Bounds:
        """The bounds of the head on the host."""
        return cast(CertifiedHead, self.plain).bounds(hidden, k)

    def draw(
        self,
        hidden: Any,
        samples: int,
        seeds: Any,
        step: int,
        scale: float,
        edits: HostEdits | None,
        *,
        fine: bool = False,
    ) -> tuple[Any, Any, Any]:
        """The ids that head `exact` draws, log Z [B, 3] and scanned [B]; else as its base has it.

        log Z is an estimate and what it is proven to lie between: that of the fine codes, which
        are all that a GPU reads, `fine` or not.
        """
        return super().draw(hidden, samples, seeds, step, scale, edits)

    def draw_plan(
        self, hidden: Tensor, samples: int, noise: Noise, scale: Tensor, edits: Edits | None
    ) -> AnyDrawPlan:
        """One pass over the sketch."""
        gpu = self._gpu
        return CertifiedDrawPlan(gpu.matrix, gpu.sketch, hidden, samples, *noise, scale, edits)
