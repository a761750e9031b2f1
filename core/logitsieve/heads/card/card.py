"""A card and what an index has there: the matrix, and the arrays of heads, copied once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from threading import Lock

import torch
from torch import Tensor

from logitsieve.heads.base import Head, Softmax
from logitsieve.heads.card.device import using
from logitsieve.heads.part import Arrays
from logitsieve.kernels.gpu.matrix import Matrix, matrix_on, on
from logitsieve.kernels.gpu.plans import Found, Plan
from logitsieve.kernels.gpu.plans.exact import ExactPlan

INTERPRETING = Lock()  # Triton's interpreter runs one kernel at a time


class Card:
    """An index's arrays on one device. Heads share it; any number of threads may use it."""

    def __init__(
        self,
        device: torch.device,
        softmax: Softmax,
        parts: Mapping[str, Arrays],
        host: Callable[[], Mapping[str, Head]],
    ) -> None:
        self.device, self.parts, self._host = device, parts, host
        with using(device):
            self.matrix: Matrix = matrix_on(device, softmax.stored, softmax.bias)
        self._copies: dict[tuple[str, str], Tensor] = {}
        self._lock = Lock()

    def array(self, part: str, name: str) -> Tensor | None:
        """An array of a part, copied when first asked for; None if the part has none."""
        array = self.parts[part].get(name)
        if array is None:
            return None
        with self._lock:
            return self._copies.setdefault((part, name), on(self.device, array))

    def plain(self, name: str, knobs: Mapping[str, float]) -> Head:
        """The head of that name on the host, over the same arrays."""
        return self._plain[name].with_knobs(**knobs)

    @cached_property
    def _plain(self) -> Mapping[str, Head]:
        """Made when first asked for: a matrix of a half type is widened then."""
        return self._host()

    def fallback(self, hidden: Tensor, k: int, found: Found, status: Tensor) -> Plan:
        """What answers the rows that another plan passes on."""
        return ExactPlan(self.matrix, hidden, k, (found, status))

    @property
    def turn(self) -> AbstractContextManager[object]:
        """What a launch is made within."""
        return nullcontext() if self.graphs else INTERPRETING

    @cached_property
    def graphs(self) -> bool:
        """Whether launches can be captured: not by the interpreter, which runs on the host."""
        return self.device.type == "cuda"
