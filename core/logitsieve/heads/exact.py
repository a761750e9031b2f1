"""The exact head: all of W h + b with a running selection, the oracle of everything else.

No paper. Time O(B V D), memory O(B (D + K)). Shape letters: B batch rows, D hidden size,
V vocabulary, K answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Self

import numpy as np

from logitsieve.api.results import (
    ArrayLike,
    Candidates,
    Float32,
    Float64,
    Int32,
    Int64,
    UInt64,
)
from logitsieve.heads._base.head import (
    Head,
    Softmax,
    checked_k,
    checked_knobs,
    no_edits,
    ready_hidden,
    refuse_first,
)
from logitsieve.heads._base.kernel_head import ProvingHead
from logitsieve.heads._base.spec import Arrays, PartSpec
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.sampling.gumbel import gumbel_sample
from logitsieve.kernels.sampling.log_z import dense_log_z
from logitsieve.kernels.topk.dense import dense_topk


class ExactHead(ProvingHead):
    """Looks at every row of W."""

    name: ClassVar[str] = "exact"
    part: ClassVar[PartSpec | None] = None

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

    def log_z(self, hidden: Float32, scale: float) -> Float32:
        """[B] the logarithm of the sum of e^{scale x} over all logits of rows of hidden [B, D]."""
        found = np.empty(len(hidden), np.float32)
        fill = partial(dense_log_z.entry(), self._address, hidden, scale, found)
        refuse_first(run_slices(fill, len(hidden), self._threads))
        return found

    def draw(
        self,
        hidden: Float32,
        samples: int,
        seeds: UInt64,
        step: int,
        scale: float,
        edits: tuple[Int64, Int32, Float64] | None,
    ) -> tuple[Int32, Float64, Int32]:
        """Draws from softmax(scale x logits): ids [B, samples], log Z [B], scanned [B].

        `edits` are CSR offsets, ids and the logits they have instead, -inf for ids that must not be
        drawn.
        """
        rows, softmax = len(hidden), self._softmax
        offsets, named, values = edits or no_edits(rows)
        ids, log_z = np.empty((rows, samples), np.int32), np.empty(rows)
        how = seeds, step, scale, offsets, named, values
        draw = partial(gumbel_sample.entry(), self._address, hidden, *how, ids, log_z)
        refuse_first(run_slices(draw, rows, self._threads))
        return ids, log_z, np.full(rows, softmax.vocab_size, np.int32)

    def warm(self) -> None:
        """The kernel is compiled when the head is made; this reads W once, so that it is cached."""
        self.topk(np.zeros((1, self._softmax.dim), np.float32), 1)
        self._softmax.logits(
            np.zeros((1, self._softmax.dim), np.float32),
            np.zeros(2, np.int64),
            np.empty(0, np.int32),
        )
        self.log_z(np.zeros((1, self._softmax.dim), np.float32), 1.0)
        seeds = np.zeros(1, np.uint64)
        self.draw(np.zeros((1, self._softmax.dim), np.float32), 1, seeds, 0, 1.0, None)
