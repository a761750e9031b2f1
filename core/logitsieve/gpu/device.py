"""A GPU as a device: its name, its memory, copies to and from it, and its driver's errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import local
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import DeviceExhausted, DeviceLost, InvalidRequest, LogitsieveError

# Prefixes of the driver's errors in PyTorch and Triton. After most of them every later call of the
# process fails as well.
DRIVER_ERRORS = ("CUDA error", "Triton Error [CUDA]")
NO_MEMORY = "out of memory"

_thread = local()


class Memory(NamedTuple):
    """Bytes of a GPU, used by any process."""

    used: int
    total: int


def device_named(name: str) -> torch.device:
    """The device that "cuda" or "cuda:1" names: the host itself under Triton's interpreter.

    InvalidRequest lists the devices of this machine, and says why CUDA has none.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        return torch.device("cpu")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = name.removeprefix("cuda").removeprefix(":") or "0"
    if not name.startswith("cuda") or not number.isdecimal() or int(number) >= gpus:
        devices = ", ".join(["cpu", *(f"cuda:{gpu}" for gpu in range(gpus))])
        if not gpus:
            reason = "finds no NVIDIA driver, or no GPU: does nvidia-smi?"
            if torch.version.cuda is None:
                reason = "is a build without CUDA: install one with it"
            devices = f"cpu (PyTorch {torch.__version__} {reason})"
        raise InvalidRequest("device", repr(name), devices)
    return torch.device("cuda", int(number))


@contextmanager
def device_context(device: torch.device) -> Iterator[None]:
    """Make `device` this thread's; its errors become DeviceExhausted or DeviceLost."""
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    except RuntimeError as error:
        if (translation := translated(error, str(device))) is not None:
            raise translation from error
        raise


def translated(error: BaseException, device: str) -> LogitsieveError | None:
    """The driver's error in our terms; None for any other error."""
    at: BaseException | None = error
    while at is not None:  # an error during a capture ends in an error of the capture itself
        if isinstance(at, torch.OutOfMemoryError) or NO_MEMORY in str(at):
            return DeviceExhausted(device)
        at = at.__context__
    if any(words in str(error) for words in DRIVER_ERRORS):
        return DeviceLost(device, str(error).partition("\n")[0])
    return None


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """This thread's stream on a GPU: threads do not wait for each other there."""
    streams: dict[torch.device, torch.cuda.Stream] = _thread.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return streams[device]


def name_of(device: torch.device) -> str:
    on_gpu = device.type == "cuda"
    return torch.cuda.get_device_name(device) if on_gpu else "Triton's interpreter"


def memory_of(device: torch.device) -> Memory | None:
    """None without a GPU, and where it does not answer."""
    if device.type != "cuda":
        return None
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # metrics are read all the same: requests report the failure
        return None
    return Memory(total - free, total)


def to_device(value: Any, device: torch.device) -> Any:
    """A copy of an array, or of every array in a NamedTuple; other values as they are.

    Earlier work of the GPU is not waited for. Arrays may be mapped or read-only.
    """
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value)).to(device, non_blocking=True)
    if hasattr(value, "_fields"):
        return type(value)(*(to_device(each, device) for each in value))
    return value


def to_host(value: Any) -> Any:
    """A tensor's values in an array, which waits for the GPU; float32 of a floating type.

    The same for every tensor in a NamedTuple; other values as they are.
    """
    if isinstance(value, Tensor):
        value = value.detach()
        return (value.float() if value.is_floating_point() else value).cpu().numpy()
    if hasattr(value, "_fields"):
        return type(value)(*map(to_host, value))
    return value
