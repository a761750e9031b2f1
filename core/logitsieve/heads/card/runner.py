"""A plan with its way in and out: pinned memory for arrays of the host, a graph to launch it by.

Shape letters: B rows that the plan was made for, D hidden size, K answers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from logitsieve.heads.card.card import Card
from logitsieve.kernels.gpu.plans import Found, Plan
from logitsieve.types.results import Float32


class Staged(NamedTuple):
    """Pinned memory, so that the card copies by itself."""

    hidden: Tensor  # [B, D]
    found: Found


class Runner:
    """Used by one thread at a time, on whatever stream is current."""

    def __init__(self, card: Card, plan: Plan) -> None:
        self._plan, self._graph, self._turn = plan, None, card.turn
        self._pinned = card.graphs
        self._staged = Staged(
            self._beside(plan.hidden), Found(*(self._beside(each) for each in plan.found))
        )
        self._done = torch.cuda.Event() if card.graphs else None  # type: ignore[no-untyped-call]
        plan.hidden.fill_(torch.nan)  # a row that nobody asks about is refused at once
        with self._turn:
            plan.run()  # compiles what is not compiled
        if card.graphs:
            self._graph = _captured(plan)

    def _beside(self, tensor: Tensor) -> Tensor:
        """Room on the host for what `tensor` holds."""
        return torch.empty_like(tensor, device="cpu", pin_memory=self._pinned)

    def answer(self, hidden: Tensor, found: Found) -> None:
        """Answer a few rows on the card into tensors there; nothing is waited for."""
        rows = len(hidden)
        self._after_the_last()
        self._plan.hidden[:rows].copy_(hidden)
        self._launch(rows)
        for theirs, mine in zip(found, self._plan.found, strict=True):
            theirs.copy_(mine[:rows])
        self._mark()

    def answer_host(self, hidden: Float32) -> tuple[np.ndarray, ...]:
        """Answer a few rows of the host: ids, logits, exact and scanned, valid until the next."""
        rows = len(hidden)
        self._after_the_last()
        self._staged.hidden[:rows] = torch.from_numpy(hidden)
        self._plan.hidden[:rows].copy_(self._staged.hidden[:rows], non_blocking=True)
        self._launch(rows)
        for theirs, mine in zip(self._staged.found, self._plan.found, strict=True):
            theirs.copy_(mine, non_blocking=True)
        self._mark()
        if self._done is not None:
            self._done.synchronize()
        return tuple(each[:rows].numpy() for each in self._staged.found)

    def _launch(self, rows: int) -> None:
        self._plan.hidden[rows:].fill_(torch.nan)
        if self._graph is None:
            with self._turn:
                self._plan.run()
        else:
            self._graph.replay()

    def _after_the_last(self) -> None:
        """The buffers may be in use still, by a call on another stream."""
        if self._done is not None:
            self._done.wait()

    def _mark(self) -> None:
        if self._done is not None:
            self._done.record()


def _captured(plan: Plan) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize(plan.hidden.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        plan.run()
    return graph
