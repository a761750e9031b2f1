"""A GPU and what an index has there: the matrix, and the arrays of heads, copied once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from logitsieve.gpu.device import using
from logitsieve.gpu.matrix import Matrix, matrix_on
from logitsieve.gpu.plans import Found, Plan
from logitsieve.gpu.plans.certified import CertifiedPlan
from logitsieve.gpu.plans.exact import ExactPlan
from logitsieve.gpu.sketch import Sketch, sketch_on
from logitsieve.heads._base.head import Head, Softmax
from logitsieve.heads._base.spec import Arrays

T = TypeVar("T")

INTERPRETING = Lock()  # Triton's interpreter runs one kernel at a time


class GpuArrays:
    """An index's arrays on one device. Heads share it; any number of threads may use it."""

    def __init__(
        self,
        device: torch.device,
        softmax: Softmax,
        parts: Mapping[str, Arrays],
        host: Callable[[], Mapping[str, Head]],
    ) -> None:
        """`host` makes the heads on the host."""
        self.device, self.softmax, self.parts, self._host = device, softmax, parts, host
        with using(device):
            self.matrix: Matrix = matrix_on(device, softmax.stored, softmax.bias)
        self._kept: dict[str, Any] = {}
        self._lock = Lock()

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """What is called that, made when first asked for."""
        with self._lock, using(self.device):
            if name not in self._kept:
                self._kept[name] = make()
            found: T = self._kept[name]
            return found

    @property
    def sketch(self) -> Sketch:
        """That of the index's `certified` head."""
        return self.kept("sketch", lambda: sketch_on(self.device, self.parts["sketch"]))

    def plain(self, name: str, knobs: Mapping[str, float]) -> Head:
        """The head of that name on the host, over the same arrays."""
        return self._plain[name].with_knobs(**knobs)

    @cached_property
    def _plain(self) -> Mapping[str, Head]:
        """Made when first asked for: a matrix of a half type is widened then."""
        return self._host()

    def fallback(self, hidden: Tensor, k: int, found: Found, status: Tensor) -> Plan:
        """What answers the rows that another plan passes on: `certified` if the index has it."""
        if "sketch" in self.parts:
            return CertifiedPlan(self.matrix, self.sketch, hidden, k, (found, status))
        return ExactPlan(self.matrix, hidden, k, (found, status))

    @property
    def turn(self) -> AbstractContextManager[object]:
        """What a launch is made within."""
        return nullcontext() if self.graphs else INTERPRETING

    @cached_property
    def graphs(self) -> bool:
        """Whether launches can be captured: not by the interpreter, which runs on the host."""
        return self.device.type == "cuda"
