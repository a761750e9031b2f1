"""The base classes of heads: a kernel reads a descriptor and answers rows of hidden_states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from logitsieve.api.results import (
    ArrayLike,
    Bool,
    Candidates,
    Float32,
    Float64,
    Int32,
    Int64,
    TopK,
    offsets_of,
    select_rows,
)
from logitsieve.heads._base.edits import Edits, no_edits
from logitsieve.heads._base.head import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT32,
    Knob,
    Softmax,
    checked_knobs,
    ready_request,
    refuse_first,
    refuse_row,
    require_part,
)
from logitsieve.heads._base.spec import Arrays, PartSpec
from logitsieve.kernels.compile import Kernel
from logitsieve.kernels.pool import ROWS_A_SLICE, hand_over_ns, run_all, run_slices
from logitsieve.kernels.sampling.quick_log_z import quick_log_z
from logitsieve.kernels.screen.route import screen_descriptor
from logitsieve.kernels.screen.screen_topk import screen_routes, screen_topk
from logitsieve.kernels.topk.descriptor import masked_by, shares_of
from logitsieve.kernels.topk.exact_topk import listed_topk
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, TOP, merge_shares

FEW_ROWS = 2 * ROWS_A_SLICE  # for fewer rows of hidden_states threads divide W instead
SHARE_BYTES = 1 << 21  # of W that a thread's share has, or more
SHARE_ANSWERS = 16  # rows of W that a share has for each answer, or more
ANY_ROWS = 1 << 62
JOINED = 2.0**-48  # bounds the rounding of logaddexp over shares

_empty, _zeros, _make = np.empty, np.zeros, tuple.__new__

# The largest useful value of each knob for an index, such as its number of clusters.
Limits = Mapping[str, Callable[[Arrays, Softmax], float]]


class BestWithLogZ(NamedTuple):
    ids: Int32  # [B, K]
    logits: Float64  # [B, K] exact
    log_z: Float64  # [B, 4] TOP, VALUE, LOW and HIGH of kernels/topk/merge.py
    errors: Float64  # [B] standard errors of log Z; 0 with proven bounds
    proven: Bool  # [B] True if the ids are proven
    scanned: Int32  # [B] logits computed
    fallback: Bool  # [B] True if the fallback answered

    def put(self, rows: Int64, found: BestWithLogZ) -> None:
        arrays: tuple[NDArray[Any], ...] = self
        for array, part in zip(arrays, found, strict=True):
            array[rows] = part


def empty_best(rows: int, k: int) -> BestWithLogZ:
    """Return arrays to fill; `proven` and `fallback` are False."""
    return BestWithLogZ(
        _empty((rows, k), INT32), _empty((rows, k)), _empty((rows, FIELDS)), _empty(rows),
        _zeros(rows, BOOL), _empty(rows, INT32), _zeros(rows, BOOL),
    )  # fmt: skip


# (address, hidden_states, ids, logits, scanned, start, stop) -> status. Fills ids and logits [B, K]
# and scanned [B] for rows start .. stop-1. The status counts the rows left to the fallback, which
# have a scanned of -1; or it is -1 - r to refuse row r of hidden_states.
TopKernel = Callable[..., int]


class Head(ABC):
    """A way to find the largest logits. Immutable; any number of threads may call it.

    A subclass names its kernel, and sets its descriptor in `_prepare` or in `_apply_knobs`.
    """

    name: ClassVar[str]
    knob_table: ClassVar[Mapping[str, Knob]] = {}
    limits: ClassVar[Limits] = {}
    part: ClassVar[PartSpec | None] = None
    max_error: float = 1.0  # the largest chance that a row's top k is wrong; 1: unknown

    compiled: ClassVar[Kernel | None] = None  # the kernel; None: `_kernel` is a Python function
    # Threads divide W if reading a share takes at least twice as long as waking a thread for it.
    bytes_per_ns: ClassVar[int] = 20  # the most that a thread reads of W
    most_rows: int = ANY_ROWS  # `full` answers calls of more rows
    quick_best: bool = False  # draws from its best ids are faster than from all logits
    estimates_log_z: bool = False  # without a pass over W; see `estimates_at`
    _mask: Int32 | None = None  # see `masked`

    _kernel: TopKernel

    def __init__(
        self,
        softmax: Softmax,
        arrays: Arrays | None = None,
        *,
        fallback: Head | None = None,
        threads: int = 1,
        knobs: Mapping[str, float] | None = None,
    ) -> None:
        self._softmax, self._arrays = softmax, arrays or {}
        self._fallback, self._threads = fallback, threads
        self.fallback_max_error = fallback.max_error if fallback else 0.0
        self._dim, self._vocab_size = softmax.dim, softmax.vocab_size
        self.knobs: dict[str, float] = {}
        if self.compiled:
            self._kernel = self.compiled.entry()
        self._prepare()
        self._set_knobs(knobs or {})
        assert fallback or self.proves, "rows without enough candidates need a fallback"

    @property
    def proves(self) -> bool:
        """True if every answer equals the full softmax's."""
        return self.max_error == 0.0

    def _prepare(self) -> None:
        self._describe(self._softmax.descriptor)

    def _set_knobs(self, changed: Mapping[str, float]) -> None:
        knobs = checked_knobs(self.knob_table, self.knobs, changed)
        most = {name: limit(self._arrays, self._softmax) for name, limit in self.limits.items()}
        self.knobs = {name: min(value, most.get(name, value)) for name, value in knobs.items()}
        self._apply_knobs()

    def _apply_knobs(self) -> None:
        return

    def _describe(self, descriptor: Int64, read: int = 0) -> None:
        """Set the descriptor, and shares of W for threads; a row reads `read` bytes or more."""
        self._descriptor, self._address = descriptor, descriptor.ctypes.data
        shares = min(self._threads, read // SHARE_BYTES)
        if shares > 1:
            least = 2 * self.bytes_per_ns * hand_over_ns()
            shares = min(shares, max(1, int(read // least)))
        self._shares = shares_of(descriptor, shares)

    @classmethod
    def from_arrays(cls, softmax: Softmax, arrays: Arrays, **options: Any) -> Self:
        """Make the head, with the constructor's `options`; InvalidRequest unless `part` fits."""
        if cls.part:
            require_part(cls.part, arrays, softmax)
        return cls(softmax, arrays, **options)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def with_knobs(self, **knobs: float) -> Self:
        """Return the head at another operating point; InvalidKnob names a bad one."""
        other = copy(self)
        other._set_knobs(knobs)
        return other

    def masked(self, mask: Int32) -> Self:
        """Return the head for calls of B rows that answers with the ids that `mask` allows.

        `mask` is int32 [B, ceil(V / 32)]: id i is bit i % 32 of word i // 32, bits beyond V are 0.
        If it allows fewer than k ids, -1 and -inf follow them.
        """
        other = copy(self)
        other._mask = mask
        other._descriptor = masked_by(self._descriptor, mask)
        other._address = other._descriptor.ctypes.data
        if len(self._shares) > 1:  # a single share is never read
            other._shares = [masked_by(share, mask) for share in self._shares]
        return other

    def topk(self, hidden_states: ArrayLike, k: int) -> TopK:
        """Return the k best tokens of each of `hidden_states` [B, D] or [D]; or InvalidRequest."""
        hidden_states, rows, k = ready_request(hidden_states, k, self._dim, self._vocab_size)
        return self._answer_checked(hidden_states, rows, k)

    def _answer_checked(self, hidden_states: Float32, rows: int, k: int) -> TopK:
        ids, logits = _empty((rows, k), INT32), _empty((rows, k), FLOAT32)
        scanned, proven, handed = _empty(rows, INT32), _zeros(rows, BOOL), _zeros(rows, BOOL)
        if self.proves:
            proven.fill(True)
        if self._shared(rows, k):
            status = self._run_shares(hidden_states, ids, logits, scanned)
        elif self._threads == 1 or rows == 1:
            status = self._kernel(self._address, hidden_states, ids, logits, scanned, 0, rows)
        else:
            status = self._run_slices(hidden_states, ids, logits, scanned)
        if status:
            self._answer_rest(status, hidden_states, k, TopK(ids, logits, proven, scanned, handed))
        return _make(TopK, (ids, logits, proven, scanned, handed))

    def _shared(self, rows: int, k: int) -> bool:
        """Tell whether threads divide W, instead of the rows of hidden_states."""
        shares = len(self._shares)
        few = shares > 1 and rows < FEW_ROWS
        return few and SHARE_ANSWERS * k * shares <= self._vocab_size

    def _spread(
        self, call: TopKernel, hidden_states: Float32, k: int, asked: Sequence[Any], *made: Any
    ) -> tuple[list[int], list[NDArray[Any]]]:
        """Return a kernel's results, and the arrays [S, B, ...] that it fills with k answers.

        Each of `made` is the dtype of an array and its shape after [S, B]. S is the number of
        shares, 1 unless threads divide W.
        """
        rows = len(hidden_states)
        shares = self._shares if self._shared(rows, k) else [self._descriptor]
        arrays = [_empty((len(shares), rows, *shape), dtype) for dtype, *shape in made]
        calls = [
            partial(call, share.ctypes.data, hidden_states, *asked, *filled)
            for share, *filled in zip(shares, *arrays, strict=True)
        ]
        if len(calls) == 1:
            return run_slices(calls[0], rows, self._threads), arrays
        return run_all([partial(each, 0, rows) for each in calls], self._threads), arrays

    def _run_slices(
        self, hidden_states: Float32, ids: Int32, logits: Float32, scanned: Int32
    ) -> int:
        answer = partial(self._kernel, self._address, hidden_states, ids, logits, scanned)
        results = run_slices(answer, hidden_states.shape[0], self._threads)
        refused = [status for status in results if status < 0]
        return max(refused) if refused else sum(results)

    def _run_shares(
        self, hidden_states: Float32, ids: Int32, logits: Float32, scanned: Int32
    ) -> int:
        rows, k = ids.shape
        made = (INT32, k), (FLOAT32, k), (INT32,)
        results, (found, _, computed) = self._spread(self._kernel, hidden_states, k, (), *made)
        if status := min(results):
            return status
        listed, offsets = found.swapaxes(0, 1).ravel(), np.arange(rows + 1) * (k * len(found))
        if self._mask is not None:
            offsets, listed = offsets_of((found >= 0).sum(axis=(0, 2))), listed[listed >= 0]
        status = int(
            listed_topk(self._address, hidden_states, offsets, listed, ids, logits, scanned, 0)
        )
        self._add_scanned(computed, scanned)
        return min(status, 0)  # a mask may allow fewer than K ids; the row is complete

    def _add_scanned(self, computed: Int32, scanned: Int32) -> None:
        np.minimum(np.add.reduce(computed, dtype=INT32), self._vocab_size, out=scanned)

    def _answer_rest(self, status: int, hidden_states: Float32, k: int, top: TopK) -> None:
        if status < 0:
            refuse_row(-1 - status)
        assert self._fallback
        rows, fallback = np.flatnonzero(top.scanned < 0), self._fallback
        if self._mask is not None:
            fallback = fallback.masked(self._mask[rows])
        for mine, theirs in zip(top, fallback.topk(hidden_states[rows], k), strict=True):
            mine[rows] = theirs
        top.fallback[rows] = True

    @abstractmethod
    def candidates(self, hidden_states: ArrayLike, k: int) -> Candidates:
        """Return every row of W that `topk` evaluates, with exact logits."""

    def _fill_short(self, listed: Candidates, hidden_states: Float32, k: int) -> Candidates:
        short = listed.offsets[1:] - listed.offsets[:-1] < k
        if not short.any():
            return listed
        assert self._fallback
        return replace_rows(listed, short, self._fallback.candidates(hidden_states[short], k))

    def selects(self, k: int, rows: int) -> bool:
        """Return True if `needed` is the fastest way to the k best ids of a call of `rows`."""
        return False

    def estimates_at(self, scale: float, k: int) -> bool:
        """Return True if `best_with_log_z` estimates log Z instead of computing all logits."""
        return self.estimates_log_z and scale == 1.0

    def best_with_log_z(self, hidden_states: Float32, k: int, scale: float = 1.0) -> BestWithLogZ:
        """Return the k best rows for each of hidden_states [B, D], and log Z of all e^{scale x}.

        A pass over W proves bounds of log Z, unless the head `estimates_at` that scale and k.
        """
        return self._best_by_pass(hidden_states, k, scale)

    def _best_by_pass(
        self, hidden_states: Float32, k: int, scale: float, *, coded: bool = False
    ) -> BestWithLogZ:
        rows = len(hidden_states)
        ids, logits, log_z = self._pass(hidden_states, k, scale, no_edits(rows), coded)
        scanned = np.full(rows, self._vocab_size, INT32)
        return BestWithLogZ(
            ids, logits, log_z, _zeros(rows), np.ones(rows, BOOL), scanned, _zeros(rows, BOOL)
        )

    def _pass(
        self, hidden_states: Float32, k: int, scale: float, edits: Edits, coded: bool = False
    ) -> tuple[Int32, Float64, Float64]:
        asked, made = (scale, coded, *edits.arrays), ((INT32, k), (FLOAT64, k), (FLOAT64, FIELDS))
        refused, every = self._spread(quick_log_z.entry(), hidden_states, k, asked, *made)
        refuse_first(refused)
        found, values, log_z = every
        if len(found) == 1:
            return found[0], values[0], log_z[0]
        ids, logits = _empty(found.shape[1:], INT32), _empty(found.shape[1:])
        merge_shares(found, values, ids, logits)
        return ids, logits, joined(log_z)

    def warm(self) -> None:
        zeros = np.zeros((1, self._dim), np.float32)
        self.topk(zeros, 1)
        self.candidates(zeros, 1)
        self.best_with_log_z(zeros, 1)


class ListingHead(Head):
    """Selects some rows of W for each query, and decides by their exact logits."""

    @abstractmethod
    def select(self, hidden_states: Float32, k: int) -> tuple[Int64, Int32]:
        """Return the rows to evaluate as CSR (offsets [B+1], distinct ids)."""

    def candidates(self, hidden_states: ArrayLike, k: int) -> Candidates:
        hidden_states, rows, k = ready_request(hidden_states, k, self._dim, self._vocab_size)
        offsets, ids = self.select(hidden_states, k)
        logits, upper = self._softmax.logits(hidden_states, offsets, ids), _empty(rows, FLOAT32)
        upper.fill(np.inf)
        return self._fill_short(Candidates(offsets, ids, logits, upper), hidden_states, k)


class SelectingHead(ListingHead):
    def _kernel(
        self, address: int, hidden_states: Float32, ids: Int32, logits: Float32, scanned: Int32,
        start: int, stop: int,
    ) -> int:  # fmt: skip
        offsets, listed = self.select(hidden_states[start:stop], ids.shape[1])
        return int(
            listed_topk(address, hidden_states, offsets, listed, ids, logits, scanned, start)
        )


class ClusteredHead(ListingHead):
    """Evaluates the lists of each row's best clusters; the knob `probed` is their number."""

    probed: ClassVar[str]

    compiled = screen_topk

    def _prepare(self) -> None:
        return

    def _apply_knobs(self) -> None:
        self._describe_lists(self._arrays, int(self.knobs[self.probed]))

    def _describe_lists(self, arrays: Arrays, probes: int) -> None:
        offsets, self._list_ids, self._probes = arrays["offsets"], arrays["ids"], probes
        self._list_offsets = np.append(offsets, offsets[-1])  # an escalated row's list is empty
        least = self.knobs.get("escalate", -1.0)
        descriptor, self._described = screen_descriptor(
            self._softmax.descriptor, arrays, probes, least, self.knobs.get("log_z_error", np.inf),
        )  # fmt: skip
        self._describe(descriptor)

    def select(self, hidden_states: Float32, k: int) -> tuple[Int64, Int32]:
        rows, size = len(hidden_states), self._vocab_size
        clusters = np.empty((rows, self._probes), np.int32)
        refuse_first([screen_routes(self._address, hidden_states, clusters)])
        if clusters.size == 1:  # the usual case
            first, end = self._list_offsets[clusters[0, 0] : clusters[0, 0] + 2]
            return np.array([0, end - first]), self._list_ids[first:end].copy()
        offsets, places = select_rows(self._list_offsets, clusters.ravel())
        offsets, ids = offsets[:: self._probes].copy(), self._list_ids[places]
        if self._probes > 1:
            keys = np.unique(np.repeat(np.arange(rows) * size, np.diff(offsets)) + ids)
            offsets = np.searchsorted(keys, np.arange(rows + 1) * size)
            ids = (keys % size).astype(np.int32)
        return offsets, ids


def joined(log_z: Float64) -> Float64:
    """Return log Z [B, 4] from the sums of all shares, log Z [S, B, 4] with a TOP of 0."""
    fields: Float64 = np.logaddexp.reduce(log_z, axis=0)
    fields[:, TOP] = 0.0
    fields[:, LOW] -= JOINED * (1.0 + np.abs(fields[:, LOW]))
    fields[:, HIGH] += JOINED * (1.0 + np.abs(fields[:, HIGH]))
    return fields


def replace_rows(listed: Candidates, rows: Bool, other: Candidates) -> Candidates:
    offsets = np.concatenate([listed.offsets, listed.offsets[-1] + other.offsets[1:]])
    columns: list[Any] = [np.concatenate(pair) for pair in zip(listed[1:], other[1:], strict=True)]
    ids, logits, upper = columns
    order = np.arange(rows.size)
    order[rows] = np.arange(rows.size, len(upper))
    offsets, places = select_rows(offsets, order)
    return Candidates(offsets, ids[places], logits[places], upper[order])
