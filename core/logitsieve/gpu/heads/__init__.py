"""Heads on a GPU: the same heads by the same names, with kernels of kernels/gpu.

What a head is, its knobs and its arrays are those of the head on the host; only `topk`, and what
else a plan exists for, is computed on the GPU. `gpu_heads` is the one place where that is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from logitsieve.gpu.heads.head import GpuHead
from logitsieve.gpu.heads.kinds import GPU_HEADS
from logitsieve.gpu.matrix import device_named
from logitsieve.gpu.resident import GpuArrays
from logitsieve.heads import make_heads
from logitsieve.heads._base.head import Head, Softmax, require_part
from logitsieve.heads._base.spec import Arrays


def gpu_heads(
    registry: Mapping[str, type[Head]],
    softmax: Softmax,
    parts: Mapping[str, Arrays],
    knobs: Mapping[str, Mapping[str, float]],
    threads: int,
    device: torch.device,
) -> dict[str, GpuHead]:
    """`exact` and those heads that `knobs` names and that run on a GPU, in the registry's order.

    `threads` are those of the heads on the host. InvalidRequest where arrays are not as their
    part says.
    """
    for kind in (registry[name] for name in knobs if name in GPU_HEADS):
        if kind.part is not None:
            require_part(kind.part, parts[kind.part.name], softmax)
    host = partial(make_heads, registry, softmax, parts, knobs, threads)
    gpu = GpuArrays(device, softmax, parts, host)
    return {
        name: GPU_HEADS[name](kind, gpu, knobs.get(name, {}))
        for name, kind in registry.items()
        if name in GPU_HEADS and (name == "exact" or name in knobs)
    }


__all__ = ["GPU_HEADS", "GpuArrays", "GpuHead", "device_named", "gpu_heads"]
