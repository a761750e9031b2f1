"""Heads whose every answer is proven: one kernel, no fallback, no knobs.

Shape letters: B batch rows, K answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from logitsieve.api.results import ArrayLike, Float32, Int32, Int64, TopK
from logitsieve.heads._base.head import (
    BOOL,
    FLOAT32,
    INT32,
    Knob,
    Softmax,
    checked_knobs,
    ready_request,
    refuse_row,
)
from logitsieve.kernels.pool import run_slices

_empty, _make = np.empty, tuple.__new__


class ProvingHead:
    """Answers by a kernel (address, hidden, ids, logits, scanned, start, stop) -> bad row or -1."""

    knob_table: ClassVar[Mapping[str, Knob]] = {}
    proves: ClassVar[bool] = True
    borrows: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, softmax: Softmax, record: Int64, kernel: Callable[..., Any], threads: int
    ) -> None:
        self._softmax, self._threads, self._kernel = softmax, threads, kernel
        self._record, self._address = record, record.ctypes.data
        self._dim, self._vocab_size = softmax.dim, softmax.vocab_size

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
        hidden, rows, k = ready_request(hidden, k, self._dim, self._vocab_size)
        ids, logits = _empty((rows, k), INT32), _empty((rows, k), FLOAT32)
        exact, scanned = _empty(rows, BOOL), _empty(rows, INT32)
        if self._threads == 1 or rows == 1:
            bad = self._kernel(self._address, hidden, ids, logits, scanned, 0, rows)
        else:
            bad = self._run_slices(hidden, ids, logits, scanned)
        if bad >= 0:
            refuse_row(bad)
        exact.fill(True)
        return _make(TopK, (ids, logits, exact, scanned))

    def _run_slices(self, hidden: Float32, ids: Int32, logits: Float32, scanned: Int32) -> int:
        def answer(start: int, stop: int) -> int:
            return int(self._kernel(self._address, hidden, ids, logits, scanned, start, stop))

        results = run_slices(answer, hidden.shape[0], self._threads)
        return next((bad for bad in results if bad >= 0), -1)
