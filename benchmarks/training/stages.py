"""A training step taken apart: proposal, forward, backward, optimizer, re-index.

The proposal is a part of the forward pass and the re-index a part of the optimizer's step (follow()
hooks onto it); both are timed inside, and taken from what is around them. Times are CPU times of
the process, so that other programs on the machine do not count.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from time import process_time_ns
from typing import Any

from torch import Tensor, nn
from torch.autograd import backward
from torch.optim import Optimizer

STAGES = ("proposal", "forward", "backward", "optimizer", "index")
KEEP_ALL, NO_MAPS = -1, -4  # mallopt's M_TRIM_THRESHOLD and M_MMAP_MAX


def keep_memory() -> None:
    """Let glibc keep what is freed: a dense gradient of 2 GB shall not cost 500,000 page faults.

    It helps the full softmax most, so ratios are over its best. Elsewhere nothing happens.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(NO_MAPS, 0)
        library.mallopt(KEEP_ALL, -1)


class Stages:
    """Nanoseconds of the last step by stage, of a head whose `propose` and structure it wraps."""

    def __init__(self, head: nn.Module) -> None:
        self.head = head
        self.ns: dict[str, int] = defaultdict(int)
        self._inside = False
        self._wrap(head, "propose", "proposal")
        structure = getattr(head, "structure", None)
        for method in ("update", "rebuild"):
            self._wrap(structure, method, "index")

    def step(self, optimizer: Optimizer, hidden: Tensor, target: Tensor) -> dict[str, int]:
        """One step; gradients are dropped outside the clock's stages, as zero_grad does."""
        self.ns.clear()
        hidden.grad = None
        times = [process_time_ns()]
        loss = self.head(hidden, target)
        times.append(process_time_ns())
        backward(loss)
        times.append(process_time_ns())
        optimizer.step()
        optimizer.zero_grad()
        times.append(process_time_ns())
        forward, back, update = (b - a for a, b in pairwise(times))
        return {
            "proposal": self.ns["proposal"],
            "forward": forward - self.ns["proposal"],
            "backward": back,
            "optimizer": update - self.ns["index"],
            "index": self.ns["index"],
        }

    def _wrap(self, owner: Any, method: str, stage: str) -> None:
        call: Callable[..., Any] | None = getattr(owner, method, None)
        if call is None:
            return

        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:  # an update that rebuilds is one thing
                return call(*arguments, **named)
            self._inside, begun = True, process_time_ns()
            try:
                return call(*arguments, **named)
            finally:
                self._inside = False
                self.ns[stage] += process_time_ns() - begun

        vars(owner)[method] = timed
