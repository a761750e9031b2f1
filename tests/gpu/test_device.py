"""Errors of a GPU by our names, and its memory."""

from __future__ import annotations

import torch

from logitsieve.api.errors import DeviceExhausted, DeviceLost
from logitsieve.gpu.device import device_named, memory_of, translated
from logitsieve.gpu.runner import GpuArrays, spent_ns
from tests.synthetic import make_softmax

GPU = GpuArrays(device_named("cuda"), make_softmax(64, 8), {}, dict)
EXHAUSTED = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    torch.AcceleratorError("CUDA error: out of memory", 2),
    RuntimeError("Triton Error [CUDA]: out of memory"),
]


def test_what_ends_a_capture_is_what_went_wrong_within_it() -> None:
    error = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    error.__context__ = EXHAUSTED[0]
    assert isinstance(translated(error, "cuda:0"), DeviceExhausted)
    error.__context__ = None
    assert isinstance(translated(error, "cuda:0"), DeviceLost)


def test_without_a_gpu_there_is_neither_memory_nor_time_to_tell() -> None:
    before = spent_ns()
    if GPU.graphs:
        memory = memory_of(GPU.device)
        assert memory is not None
        assert 0 < memory.used <= memory.total
    else:
        assert memory_of(GPU.device) is None
    assert translated(ValueError("anything"), "cuda:0") is None
    assert spent_ns() == before
