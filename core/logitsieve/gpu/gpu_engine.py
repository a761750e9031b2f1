"""The backend and the engine of a GPU.

For tensors `topk` without constraints and log Z never waits for the GPU; all other requests go
through arrays of the host.
"""

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.requests import Request, TopKRequest
from logitsieve.api.results import Provenance, TopKReply
from logitsieve.decoding.engine import LocalEngine
from logitsieve.gpu.device import name_of, to_device, to_host
from logitsieve.gpu.device_head import DeviceSoftmax
from logitsieve.gpu.heads import GPU_HEADS
from logitsieve.heads._base.head import Softmax, ready_hidden
from logitsieve.heads._base.kernel_head import Head
from logitsieve.index import Index

R = TypeVar("R")


class GpuEngine(LocalEngine):
    """Answers tensors on the index's device with tensors, and arrays as `LocalEngine` does."""

    takes_tensors = True
    answering: Any  # a DeviceHead

    @staticmethod
    def rows(index: Index, hidden_states: Any) -> Any:
        """Return [B, D], a tensor if given one on the index's device, else a float32 array."""
        full: Any = index.head("full")
        tensor = full.device_rows(hidden_states)
        return ready_hidden(hidden_states, index.dim) if tensor is None else tensor

    def answer(self, request: Request[R]) -> R:
        hidden_states: Any = request.hidden_states
        reply: Any
        if not isinstance(hidden_states, Tensor):
            return super().answer(request)
        plain = request.constraints is None and not self.normalizer
        if not isinstance(request, TopKRequest) or not plain:
            reply = super().answer(replace(request, hidden_states=to_host(hidden_states)))
            return cast("R", _on(reply, hidden_states.device))
        started, top = perf_counter_ns(), self.answering.topk(hidden_states, request.k)
        # Rows that are not proven are open, so they have no `max_error`.
        provenance = Provenance(*top[2:])
        reply = TopKReply(top.ids, top.logits, self._origin(started, provenance, ""))
        return cast("R", reply)


class GpuBackend:
    engine = GpuEngine

    def __init__(self, device: torch.device) -> None:
        self.name, self._device = name_of(device), device

    def adapted(
        self, registry: Mapping[str, type[Head]], softmax: Softmax
    ) -> tuple[dict[str, type[Head]], Softmax]:
        heads: dict[str, type[Head]] = {
            name: GPU_HEADS[name] for name in registry if name in GPU_HEADS
        }
        return heads, DeviceSoftmax(softmax, self._device)

    def logits(self, full: Any, hidden_states: Any, ids_BM: Any) -> Tensor | None:
        """Return float32 [B, M], -inf for an id outside of V; None unless both are tensors."""
        tensors = isinstance(hidden_states, Tensor) and isinstance(ids_BM, Tensor)
        return full.logits64(hidden_states, ids_BM).float() if tensors else None


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, np.ndarray):
        return to_device(value, device)
    if hasattr(value, "_fields"):
        return type(value)(*(_on(each, device) for each in value))
    return value
