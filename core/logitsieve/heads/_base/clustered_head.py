"""Heads that look at the lists of the best clusters: route by centroids, scan lists exactly.

Time O(C D + S D) a row with S rows scanned; memory C D floats and the lists.
Shape letters: B batch rows, D hidden size, V vocabulary, K answers, C clusters, P probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from logitsieve.api.results import ArrayLike, Candidates, Float32, Int32, Int64, TopK
from logitsieve.heads._base.fallback import repair, replace_rows, worst_status
from logitsieve.heads._base.fallback_head import FallbackHead
from logitsieve.heads._base.head import (
    BOOL,
    FLOAT32,
    INT32,
    Softmax,
    checked_k,
    ready_hidden,
    ready_request,
    refuse_row,
)
from logitsieve.heads._base.spec import Arrays
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.screen.clusters import screen_record
from logitsieve.kernels.screen.screen import screen_candidates, screen_topk

_empty, _zeros, _make = np.empty, np.zeros, tuple.__new__


class ClusteredHead(FallbackHead):
    """Looks at the lists of as many best clusters of each row as its knob `probed` says."""

    probed: ClassVar[str]
    disjoint: ClassVar[bool] = False  # whether the part says that no id is in two lists

    def _open(self) -> None:
        self._kernel = screen_topk.entry()
        self._dim, self._vocab_size = self._softmax.dim, self._softmax.vocab_size

    @classmethod
    def held(cls, knobs: Mapping[str, float], arrays: Arrays, softmax: Softmax) -> dict[str, float]:
        """No more clusters than there are."""
        return {**knobs, cls.probed: min(knobs[cls.probed], len(arrays["centroids"]))}

    def _settle(self) -> None:
        self._describe(self._arrays, int(self.knobs[self.probed]))

    def _describe(self, arrays: Arrays, probes: int) -> None:
        """Let the kernels see these lists."""
        self._record, self._kept = screen_record(
            self._softmax.record,
            arrays["centroids"],
            arrays["offsets"],
            arrays["ids"],
            probes,
            arrays.get("biases"),
            self.disjoint,
            self.knobs.get("escalate", -1.0),
            self._sketch(),
            arrays.get("reaches"),
        )
        self._address = self._record.ctypes.data

    def _sketch(self) -> Int64 | None:
        """The record of the sketch that lists are scanned through; None for exact logits of all."""
        return None

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        """The k best candidates of each row; rows with fewer than k go to the fallback."""
        hidden, rows, k = ready_request(hidden, k, self._dim, self._vocab_size)
        ids, logits = _empty((rows, k), INT32), _empty((rows, k), FLOAT32)
        scanned, exact = _empty(rows, INT32), _zeros(rows, BOOL)
        if self._threads == 1 or rows == 1:
            unfilled = self._kernel(self._address, hidden, ids, logits, scanned, 0, rows)
        else:
            unfilled = self._run_slices(hidden, ids, logits, scanned)
        if unfilled:
            repair(self._fallback, unfilled, hidden, k, TopK(ids, logits, exact, scanned))
        return _make(TopK, (ids, logits, exact, scanned))

    def _run_slices(self, hidden: Float32, ids: Int32, logits: Float32, scanned: Int32) -> int:
        def answer(start: int, stop: int) -> int:
            return int(self._kernel(self._address, hidden, ids, logits, scanned, start, stop))

        return worst_status(run_slices(answer, hidden.shape[0], self._threads))

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """The rows of W that `topk` would look at; `upper` is +inf: nothing is proven."""
        hidden = ready_hidden(hidden, self._dim)
        k = checked_k(k, self._vocab_size)
        short, offsets, ids, logits = screen_candidates(self._address, hidden, k)
        if short < 0:
            refuse_row(-1 - short)
        upper = np.full(hidden.shape[0], np.inf, np.float32)
        found = Candidates(offsets, ids, logits, upper)
        if not short:
            return found
        rows = np.diff(offsets) < k
        return replace_rows(found, rows, self._fallback.candidates(hidden[rows], k))

    def warm(self) -> None:
        """The kernels are compiled when first called; this calls each once."""
        zeros = np.zeros((1, self._dim), np.float32)
        self.topk(zeros, 1)
        self.candidates(zeros, 1)
