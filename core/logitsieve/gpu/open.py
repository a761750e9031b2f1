"""GPUs, as those see them who open an index on one. PyTorch is imported where one is named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.environment import require

if TYPE_CHECKING:
    from logitsieve.gpu.device import Memory

DEVICES = "cpu, cuda, cuda:0, cuda:1, ..."

_GPU = re.compile(r"cuda(:[0-9]{1,3})?")


def is_device(name: str) -> bool:
    """Whether a device may be called so; there need be none."""
    return name == "cpu" or _GPU.fullmatch(name) is not None


def gpu_device(name: str) -> Any:
    """The GPU, a torch.device, that "cuda" or "cuda:1" names.

    InvalidRequest("device") names the devices that there are, MissingExtra what is not installed.
    """
    if _GPU.fullmatch(name) is None:
        raise InvalidRequest("device", repr(name), DEVICES)
    require("gpu", "torch", "triton")
    from logitsieve.gpu.matrix import device_named

    return device_named(name)


def gpu_name(name: str) -> str:
    """What the driver calls that GPU; raises as `gpu_device` does."""
    from logitsieve.gpu.device import name_of

    return name_of(gpu_device(name))


def gpu_memory(name: str) -> tuple[str, Memory | None]:
    """The GPU's own name, "cuda:1", and its memory where it tells; raises as `gpu_device` does."""
    from logitsieve.gpu.device import memory_of

    device = gpu_device(name)
    return str(device), memory_of(device)


def gpu_ns() -> int:
    """How long GPUs have worked for arrays of the calling thread so far, the copies included."""
    from logitsieve.gpu.runner import spent_ns

    return spent_ns()
