"""What tests put on the device: a GPU, or PyTorch's CPU device without one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from logitsieve.gpu.device import device_named
from logitsieve.gpu.gpu_engine import GpuBackend
from logitsieve.gpu.matrix import DeviceMatrix
from logitsieve.heads import HEADS, Softmax, make_heads
from logitsieve.heads._base.kernel_head import Head
from logitsieve.utils.floats import narrowed
from tests.synthetic import ARRAYS

DEVICE = device_named("cuda")
TYPES = ("float32", "float16", "bfloat16")


def there(array: np.ndarray) -> torch.Tensor:
    """Return a copy on the device, uint64 as the int64 of the same bits."""
    bits = array.view(np.int64) if array.dtype == np.uint64 else array
    return torch.from_numpy(bits.copy()).to(DEVICE)


def stored_as(softmax: Softmax, dtype: str) -> Softmax:
    """Return the softmax with W rounded to that type, bfloat16 as its bits."""
    return Softmax(narrowed(softmax.weight, dtype), softmax.bias)


def matrix_of(softmax: Softmax) -> DeviceMatrix:
    return DeviceMatrix(softmax, DEVICE)


def make_gpu_heads(softmax: Softmax, knobs: dict[str, dict[str, float]], fallback: str = "") -> Any:
    """Make heads on the device over the arrays of tests/synthetic.py, by the names in `knobs`."""
    kinds = {name: HEADS[name].part for name in knobs}
    parts = {part.name: ARRAYS[name](softmax) for name, part in kinds.items() if part}
    registry, on_device = GpuBackend(DEVICE).adapted(HEADS, softmax)
    return make_heads(registry, on_device, parts, knobs, 1, fallback)


def make_gpu_head(name: str, softmax: Softmax, threads: int = 1, **knobs: float) -> Head:
    """Make one head; `threads` are those of the host and change nothing."""
    head: Head = make_gpu_heads(softmax, {"full": {}, name: knobs})[name]
    return head


class _Waits(TorchDispatchMode):
    """Note what makes the host look at a value."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noted: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        waits = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal.default")
        if any(part in name for part in waits):
            self.noted.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def noting_waits() -> Iterator[list[str]]:
    """Yield the operations that wait for a value of the device; on a GPU each is an error."""
    if DEVICE.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield []
        finally:
            torch.cuda.set_sync_debug_mode("default")
    else:
        with _Waits() as waits:
            yield waits.noted
