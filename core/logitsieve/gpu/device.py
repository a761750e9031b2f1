"""A GPU: its name, its memory, copies to and from it, and its driver's errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import local
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import DeviceExhausted, DeviceLost, InvalidRequest, LogitsieveError

# Prefixes of driver errors. After most of them every later call of the process fails.
DRIVER_ERRORS = ("CUDA error", "Triton Error [CUDA]")
NO_MEMORY = "out of memory"
TRUE_FLOAT32 = ("none", "ieee")  # of PyTorch's `fp32_precision`; "none" is the default

_spent = local()


class Memory(NamedTuple):
    used: int
    total: int


def device_named(name: str) -> torch.device:
    """Return the device, such as "cuda:1", or InvalidRequest; the CPU for Triton's interpreter."""
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
def computing(device: torch.device) -> Iterator[None]:
    """Make `device` current, without gradients or autocast, which would round operands.

    Driver errors become DeviceExhausted or DeviceLost.
    """
    current = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    try:
        with current, torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    except RuntimeError as error:
        if (translation := translated(error, str(device))) is not None:
            raise translation from error
        raise


@contextmanager
def timed(device: torch.device) -> Iterator[None]:
    """Wait for the block's GPU work and add its time to this thread's `spent_ns`."""
    if device.type != "cuda":
        yield
        return
    started = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    started.record(torch.cuda.current_stream(device))
    yield
    ended.record(torch.cuda.current_stream(device))
    ended.synchronize()
    _spent.ns = spent_ns() + int(started.elapsed_time(ended) * 1e6)


def spent_ns() -> int:
    return int(getattr(_spent, "ns", 0))


def require_true_float32(device: torch.device) -> None:
    """Raise InvalidRequest if PyTorch may round operands of float32 products (TF32, bfloat16)."""
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    precision = getattr(backend.matmul, "fp32_precision", None)  # PyTorch 2.9 and later
    if precision is None:
        precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    if precision not in TRUE_FLOAT32:
        allowed = "'ieee': no proof holds for TF32 or bfloat16 (torch.backends.cuda.matmul)"
        raise InvalidRequest("fp32_precision", repr(precision), allowed)


def translated(error: BaseException, device: str) -> LogitsieveError | None:
    if isinstance(error, torch.OutOfMemoryError) or NO_MEMORY in str(error):
        return DeviceExhausted(device)
    if any(words in str(error) for words in DRIVER_ERRORS):
        return DeviceLost(device, str(error).partition("\n")[0])
    return None


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "PyTorch on the CPU"


def memory_of(device: torch.device) -> Memory | None:
    if device.type != "cuda":
        return None
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # requests report it; metrics go on
        return None
    return Memory(total - free, total)


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(array)).to(device, non_blocking=True)


def to_host(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()
