"""The heads that run on a GPU: for each, which plan answers.

Shape letters: B rows of hidden, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor

from logitsieve.api.results import Float32
from logitsieve.gpu.heads.certified import GpuCertified
from logitsieve.gpu.heads.exact import GpuExact
from logitsieve.gpu.heads.head import GpuHead
from logitsieve.gpu.plans import Plan
from logitsieve.gpu.plans.frequency import frequency_on
from logitsieve.gpu.plans.screen import Screen, ScreenPlan, screen_on
from logitsieve.gpu.plans.svd import Preview, preview_on, svd_plan
from logitsieve.gpu.plans.svd import fits as svd_fits
from logitsieve.heads.svd import SvdHead


class GpuScreen(GpuHead):
    """Looks at the candidate lists of the best clusters of each row."""

    def plan(self, hidden: Tensor, k: int) -> Plan:
        """The lists' rows, and the fallback's."""
        return ScreenPlan(
            self._gpu.matrix, self._screen(), hidden, k, self._gpu.fallback,
            probes=int(self.knobs["probes"]), escalate=self.knobs["escalate"],
        )  # fmt: skip

    def _screen(self) -> Screen:
        return self._gpu.kept("screen", lambda: screen_on(self._gpu.device, self._arrays))


class GpuFrequency(GpuHead):
    """Looks at the first `n` ids of the part."""

    def plan(self, hidden: Tensor, k: int) -> Plan:
        """One list for all."""
        return ScreenPlan(
            self._gpu.matrix,
            self._screen(int(self.knobs["n"])),
            hidden,
            k,
            self._gpu.fallback,
        )

    def _screen(self, n: int) -> Screen:
        device, ids = self._gpu.device, self._arrays["ids"]
        return self._gpu.kept(f"frequency {n}", lambda: frequency_on(device, ids, n, self._dim))


class GpuSvd(GpuHead):
    """Looks at the `candidates` rows whose logits are largest in `width` rotated dimensions."""

    def fits(self, k: int) -> bool:
        """Nor are more candidates chosen on a GPU than a few thousand."""
        return super().fits(k) and svd_fits(self._vocab_size, int(self.knobs["candidates"]))

    def plan(self, hidden: Tensor, k: int) -> Plan:
        """The preview of all rows, then the best of it."""
        gpu, candidates = self._gpu, int(self.knobs["candidates"])
        preview = self._preview(int(self.knobs["width"]))
        return svd_plan(gpu.matrix, preview, hidden, k, gpu.fallback, candidates=candidates)

    def scores(self, hidden: Float32) -> Float32:
        """The preview of all logits, [B, V], as the head on the host has it."""
        return cast(SvdHead, self.plain).scores(hidden)

    def _preview(self, width: int) -> Preview:
        gpu, arrays = self._gpu, self._arrays
        return gpu.kept(
            f"preview {width}",
            lambda: preview_on(gpu.device, arrays, self._vocab_size, width),
        )


GPU_HEADS: Mapping[str, type[GpuHead]] = {
    "exact": GpuExact,
    "certified": GpuCertified,
    "screen": GpuScreen,
    "svd": GpuSvd,
    "frequency": GpuFrequency,
}
