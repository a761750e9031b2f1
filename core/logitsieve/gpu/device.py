"""A GPU as a device: being its user, its errors in our words, its name and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import local
from typing import NamedTuple

import torch

from logitsieve.api.errors import DeviceExhausted, DeviceLost, LogitsieveError

# What PyTorch and Triton begin the errors of the driver with. Most of them are for the life of the
# process: whatever is asked of the GPU afterwards fails as well.
OF_THE_DRIVER = ("CUDA error", "Triton Error [CUDA]")
NO_MEMORY = "out of memory"

_own = local()


class Memory(NamedTuple):
    """Bytes of a GPU, whoever uses them."""

    used: int
    total: int


@contextmanager
def using(device: torch.device) -> Iterator[None]:
    """Make `device` this thread's; DeviceExhausted or DeviceLost for what goes wrong there."""
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    except RuntimeError as error:
        if (told := translated(error, str(device))) is not None:
            raise told from error
        raise


def translated(error: BaseException, device: str) -> LogitsieveError | None:
    """What has happened to the GPU; None where the error is of another kind."""
    at: BaseException | None = error
    while at is not None:  # what goes wrong within a capture ends in an error of the capture
        if isinstance(at, torch.OutOfMemoryError) or NO_MEMORY in str(at):
            return DeviceExhausted(device)
        at = at.__context__
    if any(words in str(error) for words in OF_THE_DRIVER):
        return DeviceLost(device, str(error).partition("\n")[0])
    return None


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """This thread's stream on a GPU: threads do not wait for each other there."""
    streams: dict[torch.device, torch.cuda.Stream] = _own.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return streams[device]


def name_of(device: torch.device) -> str:
    """The GPU as its driver calls it."""
    if device.type != "cuda":
        return "Triton's interpreter"
    return torch.cuda.get_device_name(device)


def memory_of(device: torch.device) -> Memory | None:
    """None where there is no GPU, or where it does not answer."""
    if device.type != "cuda":
        return None
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # who reads metrics is not who must act on it
        return None
    return Memory(total - free, total)
