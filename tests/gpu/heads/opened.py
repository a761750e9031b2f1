"""Heads on a GPU over the arrays of tests/synthetic.py."""

from __future__ import annotations

from logitsieve.gpu.device import device_named
from logitsieve.gpu.heads import gpu_heads
from logitsieve.gpu.heads.base import GpuHead
from logitsieve.heads import HEADS, Softmax
from tests.synthetic import ARRAYS


def make_gpu_heads(
    softmax: Softmax, knobs: dict[str, dict[str, float]], fallback: str = ""
) -> dict[str, GpuHead]:
    """Heads on one GPU, by the names in `knobs`."""
    kinds = {name: HEADS[name].part for name in knobs}
    parts = {part.name: ARRAYS[name](softmax) for name, part in kinds.items() if part}
    return gpu_heads(HEADS, softmax, parts, knobs, 1, device_named("cuda"), fallback)


def make_gpu_head(name: str, softmax: Softmax, threads: int = 1, **knobs: float) -> GpuHead:
    """Make one head; `threads` are those of the host."""
    return make_gpu_heads(softmax, {"exact": {}, name: knobs})[name]
