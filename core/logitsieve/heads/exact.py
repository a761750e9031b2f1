"""The exact head: all of W h + b with a running selection, the oracle of everything else.

No paper. Time O(B V D), memory O(B (D + K)). Shape letters: B batch rows, D hidden size,
V vocabulary, K answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from logitsieve.heads.base import Head, Softmax, checked_k, checked_knobs, ready_hidden
from logitsieve.heads.part import Arrays, Part
from logitsieve.heads.proving import ProvingHead
from logitsieve.kernels.dense import dense_topk
from logitsieve.types.results import ArrayLike, Candidates


class ExactHead(ProvingHead):
    """Looks at every row of W."""

    name: ClassVar[str] = "exact"
    part: ClassVar[Part | None] = None

    def __init__(self, softmax: Softmax, threads: int = 1) -> None:
        super().__init__(softmax, softmax.record, dense_topk.entry(), threads)

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
