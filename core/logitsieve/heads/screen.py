"""The learned screen (L2S): the nearest cluster's candidate list instead of the vocabulary.

Chen, Si, Kumar, Li, Hsieh 2019, Learning to Screen for Fast Softmax Inference on Large Vocabulary
Neural Networks: t = argmax_c v_c . h, then exact logits of the words in list t (section 3).
Time O(C D + S D) a row with S candidates scanned; memory C D floats and the lists.
Shape letters: B batch rows, D hidden size, V vocabulary, K answers, C clusters, P probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from logitsieve.heads.base import (
    FLOAT32,
    Head,
    Knob,
    Softmax,
    checked_k,
    checked_knobs,
    ready_hidden,
    refuse_row,
    require_array,
)
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.screen import screen_candidates, screen_record, screen_topk
from logitsieve.types.errors import InvalidRequest
from logitsieve.types.results import ArrayLike, Bool, Candidates, Float32, Int32, TopK

_INT32, _BOOL = np.dtype(np.int32), np.dtype(np.bool_)
_empty, _zeros, _make = np.empty, np.zeros, tuple.__new__


class ScreenHead:
    """Looks at the candidate lists of the `probes` best clusters of each row."""

    name: ClassVar[str] = "screen"
    knob_table: ClassVar[Mapping[str, Knob]] = {
        "probes": Knob(help="best clusters to unite: precision for time", default=1, low=1, high=64)
    }
    proves: ClassVar[bool] = False

    def __init__(
        self,
        softmax: Softmax,
        centroids: Float32,
        offsets: Int32,
        ids: Int32,
        *,
        fallback: Head,
        threads: int = 1,
        probes: int = 1,
    ) -> None:
        self._softmax, self._fallback, self._threads = softmax, fallback, threads
        self._screen = (centroids, offsets, ids)
        self._probes = min(probes, centroids.shape[0])
        self._record, self._kept = screen_record(
            softmax.record, centroids, offsets, ids, self._probes
        )
        self._address = self._record.ctypes.data
        self._kernel = screen_topk.entry()
        self._dim, self._vocab_size = softmax.dim, softmax.vocab_size

    @classmethod
    def from_arrays(
        cls,
        softmax: Softmax,
        arrays: Mapping[str, np.ndarray],
        *,
        fallback: Head | None,
        threads: int,
        knobs: Mapping[str, float],
    ) -> Self:
        """`centroids` float32 [C, D], `offsets` int32 [C+1], `ids` int32 [offsets[C]]."""
        assert fallback is not None, "a screen needs a fallback for rows it cannot fill"
        point = checked_knobs(cls.knob_table, {}, knobs)
        centroids, offsets, ids = (arrays[name] for name in ("centroids", "offsets", "ids"))
        _require_lists(softmax, centroids, offsets, ids)
        return cls(
            softmax,
            centroids,
            offsets,
            ids,
            fallback=fallback,
            threads=threads,
            probes=point["probes"],
        )

    @property
    def knobs(self) -> Mapping[str, float]:
        """`probes`."""
        return {"probes": self._probes}

    def with_knobs(self, **knobs: float) -> Self:
        """The same screen at another operating point."""
        point = checked_knobs(self.knob_table, self.knobs, knobs)
        return type(self)(
            self._softmax,
            *self._screen,
            fallback=self._fallback,
            threads=self._threads,
            probes=point["probes"],
        )

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        """The k best candidates of each row; rows with fewer than k go to the fallback."""
        if (  # ready_hidden's first lines: a call costs as much as they do
            type(hidden) is not np.ndarray
            or hidden.dtype is not FLOAT32
            or not hidden.flags.c_contiguous
            or hidden.ndim != 2
        ):
            hidden = ready_hidden(hidden, self._dim)
        rows, dim = hidden.shape
        if dim != self._dim or not rows:
            ready_hidden(hidden, self._dim)  # says what is wrong
        if type(k) is not int or not 0 < k <= self._vocab_size:
            k = checked_k(k, self._vocab_size)
        ids, logits = _empty((rows, k), _INT32), _empty((rows, k), FLOAT32)
        scanned, exact = _empty(rows, _INT32), _zeros(rows, _BOOL)
        if self._threads == 1 or rows == 1:
            unfilled = self._kernel(self._address, hidden, ids, logits, scanned, 0, rows)
        else:
            unfilled = self._run_slices(hidden, ids, logits, scanned)
        if unfilled:
            self._repair(unfilled, hidden, k, TopK(ids, logits, exact, scanned))
        return _make(TopK, (ids, logits, exact, scanned))

    def _run_slices(self, hidden: Float32, ids: Int32, logits: Float32, scanned: Int32) -> int:
        def answer(start: int, stop: int) -> int:
            return int(self._kernel(self._address, hidden, ids, logits, scanned, start, stop))

        results = run_slices(answer, hidden.shape[0], self._threads)
        refused = [result for result in results if result < 0]
        return max(refused) if refused else sum(results)  # of refused rows the first

    def _repair(self, unfilled: int, hidden: Float32, k: int, top: TopK) -> None:
        """Refuse a bad row, or let the fallback answer the rows that found too few candidates."""
        if unfilled < 0:
            refuse_row(-1 - unfilled)
        rows = np.flatnonzero(top.scanned < 0)
        for mine, theirs in zip(top, self._fallback.topk(hidden[rows], k), strict=True):
            mine[rows] = theirs

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
        return _replace_rows(found, rows, self._fallback.candidates(hidden[rows], k))

    def warm(self) -> None:
        """The kernels are compiled when first called; this calls each once."""
        zeros = np.zeros((1, self._dim), np.float32)
        self.topk(zeros, 1)
        self.candidates(zeros, 1)


def _require_lists(softmax: Softmax, centroids: Float32, offsets: Int32, ids: Int32) -> None:
    """InvalidRequest unless a kernel can follow every offset and id."""
    require_array("centroids", centroids, FLOAT32, (None, softmax.dim))
    require_array("offsets", offsets, _INT32, (len(centroids) + 1,))
    require_array("ids", ids, _INT32, (None,))
    if offsets[0] != 0 or offsets[-1] != ids.size or (offsets[1:] < offsets[:-1]).any():
        raise InvalidRequest("offsets", "an order", f"rising from 0 to {ids.size}, the ids")
    if ids.min() < 0 or ids.max() >= softmax.vocab_size:
        got = f"{ids.min()} to {ids.max()}"
        raise InvalidRequest("ids", got, f"0 to {softmax.vocab_size - 1}")


def _replace_rows(found: Candidates, rows: Bool, other: Candidates) -> Candidates:
    """`found` with the marked rows taken from `other`, which has just those."""
    lengths = np.diff(found.offsets)
    keep = np.repeat(~rows, lengths)
    source = np.empty(rows.size, np.int64)  # where each row's ids start in [kept, other]
    source[~rows] = np.cumsum(lengths[~rows]) - lengths[~rows]
    source[rows] = keep.sum() + other.offsets[:-1]
    lengths[rows] = np.diff(other.offsets)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    order = np.arange(offsets[-1]) + np.repeat(source - offsets[:-1], lengths)
    upper = found.upper.copy()
    upper[rows] = other.upper
    return Candidates(
        offsets,
        np.concatenate([found.ids[keep], other.ids])[order],
        np.concatenate([found.logits[keep], other.logits])[order],
        upper,
    )
