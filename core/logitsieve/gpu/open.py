"""GPUs by name. PyTorch is imported only once a GPU is named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.environment import require

if TYPE_CHECKING:
    from logitsieve.gpu.device import Memory
    from logitsieve.gpu.gpu_engine import GpuBackend

DEVICES = "cpu, cuda, cuda:0, cuda:1, ..."

_GPU = re.compile(r"cuda(:[0-9]{1,3})?")


def is_device(name: str) -> bool:
    """True for a well-formed name; the device need not exist."""
    return name == "cpu" or _GPU.fullmatch(name) is not None


def gpu_device(name: str) -> Any:
    """The torch.device that "cuda" or "cuda:1" names.

    InvalidRequest("device") lists the devices of this machine, and says why CUDA has none;
    MissingExtra names what is not installed.
    """
    if _GPU.fullmatch(name) is None:
        raise InvalidRequest("device", repr(name), DEVICES)
    require("gpu", "torch", "triton")
    from logitsieve.gpu.device import device_named

    return device_named(name)


def gpu_backend(name: str) -> GpuBackend:
    """Heads and engines for that GPU; raises as `gpu_device` does."""
    device = gpu_device(name)
    from logitsieve.gpu.gpu_engine import GpuBackend

    return GpuBackend(device)


def gpu_memory(name: str) -> tuple[str, Memory | None]:
    """The full name, such as "cuda:1", and its memory if known; raises as `gpu_device` does."""
    from logitsieve.gpu.device import memory_of

    device = gpu_device(name)
    return str(device), memory_of(device)


def gpu_ns() -> int:
    """Nanoseconds of GPU time for arrays of the calling thread so far, copies included."""
    from logitsieve.gpu.device import spent_ns

    return spent_ns()
