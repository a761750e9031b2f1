"""Heads on a GPU: the same heads by the same names, with kernels of gpu/kernels.

What a head is, its knobs and its arrays are those of the head on the host; `topk`, and whatever
else has a plan, is computed on the GPU.

Shape letters: B rows of hidden, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor

from logitsieve.api.results import Float32
from logitsieve.gpu.heads.base import GpuHead
from logitsieve.gpu.heads.draws import GpuCertified, GpuExact
from logitsieve.gpu.plans import LaunchPlan
from logitsieve.gpu.plans.screen import RoutedPlan, frequency_on, screen_on
from logitsieve.gpu.plans.svd import SvdPlan, preview_on
from logitsieve.gpu.plans.svd import fits as svd_fits
from logitsieve.gpu.runner import GpuArrays
from logitsieve.heads import make_heads
from logitsieve.heads._base.head import Head, Softmax, require_part
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.svd import SvdHead


class GpuScreen(GpuHead):
    """Looks at the candidate lists of the best clusters of each row."""

    def plan(self, hidden: Tensor, k: int) -> LaunchPlan:
        gpu, probes, escalate = self._gpu, int(self.knobs["probes"]), self.knobs["escalate"]
        screen = gpu.kept("screen", lambda: screen_on(gpu.device, self._arrays))
        return RoutedPlan(
            gpu.matrix, screen, hidden, k, gpu.fallback, probes=probes, escalate=escalate
        )


class GpuFrequency(GpuHead):
    """Looks at the first `n` ids of the part: one list for all rows."""

    def plan(self, hidden: Tensor, k: int) -> LaunchPlan:
        gpu, n, ids = self._gpu, int(self.knobs["n"]), self._arrays["ids"]
        screen = gpu.kept(f"frequency {n}", lambda: frequency_on(gpu.device, ids, n, self._dim))
        return RoutedPlan(gpu.matrix, screen, hidden, k, gpu.fallback)


class GpuSvd(GpuHead):
    """Looks at the `candidates` rows whose logits are largest in `width` rotated dimensions."""

    def fits(self, k: int) -> bool:
        """Nor are more candidates chosen on a GPU than a few thousand."""
        return super().fits(k) and svd_fits(self._vocab_size, int(self.knobs["candidates"]))

    def plan(self, hidden: Tensor, k: int) -> LaunchPlan:
        gpu, width = self._gpu, int(self.knobs["width"])
        if k > (candidates := int(self.knobs["candidates"])):
            return gpu.fallback(hidden, k)
        preview = gpu.kept(
            f"preview {width}",
            lambda: preview_on(gpu.device, self._arrays, self._vocab_size, width),
        )
        return SvdPlan(gpu.matrix, preview, hidden, k, candidates)

    def scores(self, hidden: Float32) -> Float32:
        """The preview of all logits, [B, V], as the head on the host has it."""
        return cast(SvdHead, self.cpu_head).scores(hidden)


GPU_HEADS: Mapping[str, type[GpuHead]] = {
    "exact": GpuExact,
    "certified": GpuCertified,
    "screen": GpuScreen,
    "svd": GpuSvd,
    "frequency": GpuFrequency,
}


def gpu_heads(
    registry: Mapping[str, type[Head]],
    softmax: Softmax,
    parts: Mapping[str, Arrays],
    knobs: Mapping[str, Mapping[str, float]],
    threads: int,
    device: torch.device,
    fallback: str = "",
) -> dict[str, GpuHead]:
    """`exact` and those heads that `knobs` names and that run on a GPU, in the registry's order.

    `threads` are those of the heads on the host, `fallback` is as there. InvalidRequest
    where arrays are not as their part says.
    """
    for kind in (registry[name] for name in knobs if name in GPU_HEADS):
        if kind.part is not None:
            require_part(kind.part, parts[kind.part.name], softmax)
    host = partial(make_heads, registry, softmax, parts, knobs, threads, fallback)
    gpu = GpuArrays(device, softmax, parts, host, fallback)
    return {
        name: GPU_HEADS[name](kind, gpu, knobs.get(name, {}))
        for name, kind in registry.items()
        if name in GPU_HEADS and (name == "exact" or name in knobs)
    }
