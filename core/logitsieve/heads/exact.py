"""The exact head: all of W h + b with a running selection, the oracle of everything else.

No paper. Time O(B V D), memory O(B (D + K)). Shape letters: B batch rows, D hidden size,
V vocabulary, K answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from logitsieve.heads.base import (
    Head,
    Knob,
    Softmax,
    checked_k,
    checked_knobs,
    ready_hidden,
    refuse_row,
)
from logitsieve.heads.part import Arrays, Part
from logitsieve.kernels.dense import dense_topk
from logitsieve.kernels.pool import run_slices
from logitsieve.types.results import ArrayLike, Candidates, Float32, Int32, TopK


class ExactHead:
    """Looks at every row of W."""

    name: ClassVar[str] = "exact"
    knob_table: ClassVar[Mapping[str, Knob]] = {}
    proves: ClassVar[bool] = True
    part: ClassVar[Part | None] = None
    borrows: ClassVar[tuple[str, ...]] = ()

    def __init__(self, softmax: Softmax, threads: int = 1) -> None:
        self._softmax = softmax
        self._threads = threads
        self._kernel = dense_topk.entry()
        self._record = softmax.record
        self._address = self._record.ctypes.data

    @classmethod
    def from_arrays(
        cls,
        softmax: Softmax,
        arrays: Arrays,
        *,
        fallback: Head | None,
        threads: int,
        knobs: Mapping[str, float],
    ) -> Self:
        """Takes no arrays, fallback or knobs."""
        checked_knobs(cls.knob_table, {}, knobs)
        return cls(softmax, threads)

    @property
    def knobs(self) -> Mapping[str, float]:
        """None."""
        return {}

    def with_knobs(self, **knobs: float) -> Self:
        """InvalidKnob for any knob."""
        checked_knobs(self.knob_table, {}, knobs)
        return self

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        """The k largest of all V logits of each row; `exact` is True throughout."""
        softmax = self._softmax
        hidden = ready_hidden(hidden, softmax.dim)
        k = checked_k(k, softmax.vocab_size)
        rows = hidden.shape[0]
        ids, logits = np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)
        exact, scanned = np.empty(rows, np.bool_), np.empty(rows, np.int32)
        if self._threads == 1 or rows == 1:
            bad = self._kernel(self._address, hidden, ids, logits, 0, rows)
        else:
            bad = self._run_slices(hidden, ids, logits)
        if bad >= 0:
            refuse_row(bad)
        exact.fill(True)
        scanned.fill(softmax.vocab_size)
        return TopK(ids, logits, exact, scanned)

    def _run_slices(self, hidden: Float32, ids: Int32, logits: Float32) -> int:
        def answer(start: int, stop: int) -> int:
            return int(self._kernel(self._address, hidden, ids, logits, start, stop))

        results = run_slices(answer, hidden.shape[0], self._threads)
        return next((bad for bad in results if bad >= 0), -1)

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """All V rows of W; nothing is outside, so `upper` is -inf."""
        softmax = self._softmax
        hidden = ready_hidden(hidden, softmax.dim)
        checked_k(k, softmax.vocab_size)
        rows, vocab_size = hidden.shape[0], softmax.vocab_size
        offsets = np.arange(rows + 1, dtype=np.int64) * vocab_size
        ids = np.tile(np.arange(vocab_size, dtype=np.int32), rows)
        logits = softmax.logits(hidden, offsets, ids)
        return Candidates(offsets, ids, logits, np.full(rows, -np.inf, np.float32))

    def warm(self) -> None:
        """The kernel is compiled when the head is made; this reads W once, so that it is cached."""
        self.topk(np.zeros((1, self._softmax.dim), np.float32), 1)
        self._softmax.logits(
            np.zeros((1, self._softmax.dim), np.float32),
            np.zeros(2, np.int64),
            np.empty(0, np.int32),
        )
