"""GPUs by name. PyTorch is imported only if one is named."""

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
    return name == "cpu" or _GPU.fullmatch(name) is not None


def gpu_device(name: str) -> Any:
    """Return the torch.device, such as "cuda:1"; or InvalidRequest, MissingExtra."""
    if _GPU.fullmatch(name) is None:
        raise InvalidRequest("device", repr(name), DEVICES)
    require("gpu", "torch", "triton")
    from logitsieve.gpu.device import device_named

    return device_named(name)


def gpu_backend(name: str) -> GpuBackend:
    device = gpu_device(name)
    from logitsieve.gpu.gpu_engine import GpuBackend

    return GpuBackend(device)


def gpu_memory(name: str) -> tuple[str, Memory | None]:
    """Return the full name, such as "cuda:1", and the memory if known. See `gpu_device`."""
    from logitsieve.gpu.device import memory_of

    device = gpu_device(name)
    return str(device), memory_of(device)


def gpu_ns() -> int:
    from logitsieve.gpu.device import spent_ns

    return spent_ns()
