"""A shard: some rows of W, and what it answers so that answers of all shards make one.

Every method takes and returns arrays, numbers and names, and keeps nothing: another process may
answer it. Ids are those of the whole vocabulary, `first` being that of the first row. Sums go from
one shard to the next in the order of ids, so that they have the bits of one W; everything else may
be asked of all shards at once.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, N draws, L ids of all lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from logitsieve.api.results import Bool, Candidates, Float32, Float64, Int32, Int64, UInt64
from logitsieve.heads._base.head import Edits, Head, Softmax, edits_of_rows, no_edits, offsets_of
from logitsieve.heads.certified import CertifiedHead
from logitsieve.heads.exact import ExactHead
from logitsieve.kernels.sampling.quick_log_z import STATE as QUICK_SUMS
from logitsieve.kernels.sampling.shard_gumbel import CARRIED
from logitsieve.kernels.topk.merge import FIELDS, TOP
from logitsieve.kernels.topk.queries import CHUNK

T = TypeVar("T")

ALIGNED = CHUNK  # the first row of a shard is a multiple of it: sums and noise go by such chunks


class Best(NamedTuple):
    """The best rows of a shard, best first."""

    ids: Int32  # [B, K]
    logits: Float64  # [B, K]
    scanned: Int32  # [B]


class Noise(NamedTuple):
    """The source of draws beside logits: random numbers, the temperature, where to measure from."""

    seeds: UInt64  # [B]
    step: int
    scale: float  # 1 / temperature
    tops: Float64  # [B] the largest logits of all shards, after edits
    guesses: Float64  # [B] perturbed logits, beside `tops`, that a winner may reach


class Leading(NamedTuple):
    """The leading ids of draws among some shards."""

    ids: Int32  # [B, N]
    reached: Float64  # [B, N] their perturbed logits, beside the tops; -inf where there is none

    @classmethod
    def nobody(cls, rows: int, samples: int) -> Leading:
        """The start of draws."""
        return cls(np.zeros((rows, samples), np.int32), np.full((rows, samples), -np.inf))


class Shard:
    """Rows `first` .. `first` + `rows` - 1 of W. Any number of threads may call it.

    `norms` are `Softmax.norms` of the whole; `heads` are `exact`, and `certified` where the shard
    has its sketch. A proxy of a shard elsewhere has the same numbers and public methods, and raises
    ShardUnavailable where the shard cannot be asked.
    """

    remote: ClassVar[bool] = False  # True of a proxy, whose answers are waited for

    def __init__(self, first: int, softmax: Softmax, heads: Mapping[str, Head]) -> None:
        assert first % ALIGNED == 0
        self.first, self.rows, self.dim = first, softmax.vocab_size, softmax.dim
        self._softmax, self._heads = softmax, heads

    @property
    def norms(self) -> tuple[float, float]:
        return self._softmax.norms

    def begin(self, question: Callable[[Shard], T]) -> Callable[[], T]:
        """What gives the answer of a question, one call of a method of the shard.

        A proxy sends the question at once, so that several are answered side by side.
        """
        return partial(question, self)

    def weight(self, ids: Int64) -> Float32:
        """float32 [R, D] of these rows of W."""
        return self._softmax.rows(ids - self.first)

    def logits64(self, hidden: Float32, offsets: Int64, ids: Int32) -> Float64:
        """Exact logits of those of the CSR ids that are the shard's, in their order."""
        offsets, ids, _ = self.part_of((offsets, ids, np.empty(ids.size)))
        return self._softmax.logits64(hidden, offsets, ids)

    def best(self, head: str, hidden: Float32, k: int, floors: Float64 | None = None) -> Best:
        """The k best rows, or all if they are fewer, by a head that proves its answers.

        With floors [B], which `certified` takes, rows whose logits are below need not be the best.
        """
        k = min(k, self.rows)
        if floors is None:
            top = self._heads[head].topk(hidden, k)
        else:
            assert head == "certified"
            top = self._certified.with_floors(floors).topk(hidden, k)
        offsets = np.arange(len(hidden) + 1, dtype=np.int64) * top.ids.shape[1]
        logits = self._softmax.logits64(hidden, offsets, top.ids.ravel())
        return Best(top.ids + np.int32(self.first), logits.reshape(top.ids.shape), top.scanned)

    def candidates(self, head: str, hidden: Float32, k: int) -> Candidates:
        """The rows that the head would look at, with exact logits."""
        listed = self._heads[head].candidates(hidden, min(k, self.rows))
        return listed._replace(ids=listed.ids + np.int32(self.first))

    def above(self, hidden: Float32, edits: Edits, floors: Float64) -> tuple[Int64, Int32, Float64]:
        """CSR ids of logits that are at least floors [B], after edits, and these; all are read."""
        offsets, edited, values = self.part_of(edits)
        rows = np.arange(self.rows, dtype=np.int32)
        ids, kept = [], []
        for row, floor in enumerate(floors.tolist()):
            ends = np.array([0, self.rows], np.int64)
            logits = self._softmax.logits64(hidden[row : row + 1], ends, rows)
            own = slice(offsets[row], offsets[row + 1])
            logits[edited[own]] = values[own]
            ids.append(np.flatnonzero(logits >= floor))
            kept.append(logits[ids[-1]])
        listed = np.concatenate(ids) + self.first
        return offsets_of(np.array([*map(len, ids)])), listed.astype(np.int32), np.concatenate(kept)

    def log_z(
        self, hidden: Float32, scale: float, edits: Edits, sums: Float64
    ) -> tuple[Float64, Float64]:
        """(log Z [B, 4] of the rows up to this shard's last, the sums [B, 2] to go on from)."""
        sums = sums.copy()
        carried = self.first, sums
        return self._exact.log_z(hidden, scale, self.part_of(edits), carried), sums

    def quick_log_z(self, hidden: Float32, sums: Float64 | None) -> tuple[Float64, Float64]:
        """(log Z [B, 3] of the rows up to this shard's last, the sums [B, 8] to go on from).

        `sums` are None for the first shard.
        """
        if sums is None:
            carried = 0, np.empty((len(hidden), QUICK_SUMS))
        else:
            carried = self.first, sums.copy()
        return self._exact.quick_log_z(hidden, carried), carried[1]

    def race(
        self, hidden: Float32, edits: Edits, noise: Noise, leading: Leading, sums: Float64
    ) -> tuple[Leading, Float64, Float64]:
        """(Draws after this shard's part in them, log Z [B, 4] up to its last row, sums [B, 18]).

        Of the sums only log Z needs those of the shards before.
        """
        ids, reached, sums = leading.ids.copy(), leading.reached.copy(), sums.copy()
        carried = self.first, sums
        log_z = self._exact.race(hidden, self.part_of(edits), *noise, carried, ids, reached)
        return Leading(ids, reached), log_z, sums

    def bound_log_z(
        self, hidden: Float32, scale: float, edits: Edits, width: float
    ) -> tuple[Float64, Float64, Int32, Bool]:
        """(log Z [B, 3] of its rows alone, their largest logits [B], scanned [B], found [B]).

        Where it found none, its sketch says too little. At a width of inf log Z is that of coarse
        codes, which is enough to guess what wins a draw.
        """
        return self._certified.bound_log_z(hidden, scale, self.part_of(edits), width)

    def bounded_log_z(self, hidden: Float32, scale: float, edits: Edits, width: float) -> Float64:
        """log Z [B, 3] of the shard's rows alone, by all logits where its sketch says too little.

        An estimate and what it is proven to lie between; -inf where edits leave no row of it.
        """
        edits, log_z = self.part_of(edits), np.full((len(hidden), FIELDS), -np.inf)
        log_z[:, TOP], rows = 0.0, np.flatnonzero(self._any_left(edits))
        if rows.size:
            part = edits_of_rows(edits, rows)
            log_z[rows] = self._certified.log_z(hidden[rows], scale, part, width)
        return log_z

    def bounded_race(
        self, hidden: Float32, edits: Edits, noise: Noise, leading: Leading
    ) -> tuple[Leading, Int32, Bool]:
        """(Draws after this shard's part in them, scanned [B], which [B] its sketch decided)."""
        ids, reached = leading.ids.copy(), leading.reached.copy()
        scanned, found = self._certified.race(
            hidden, self.part_of(edits), *noise, self.first, ids, reached
        )
        return Leading(ids, reached), scanned, found

    def part_of(self, edits: Edits) -> Edits:
        """The edits, or other CSR ids and values, that are of the shard's rows; ids from 0."""
        offsets, ids, values = ids_of(self.first, self.rows, *edits)
        return offsets, ids - np.int32(self.first), values

    def _any_left(self, edits: Edits) -> Bool:
        """[B] whether edits of the shard's rows leave any of them."""
        offsets, _, values = edits
        shut = np.concatenate([[0], np.cumsum(values == -np.inf)])
        return np.asarray(np.diff(shut[offsets]) < self.rows)

    def warm(self) -> None:
        """Compile every kernel that its methods need."""
        for head in self._heads.values():
            head.warm()
        zeros, none, edits = np.zeros((1, self.dim), np.float32), np.zeros(1), no_edits(1)
        noise = Noise(np.zeros(1, np.uint64), 0, 1.0, none, none)
        leading = Leading.nobody(1, 1)
        self.best("exact", zeros, 1)
        self.race(zeros, edits, noise, leading, nothing_carried(1))
        if "certified" in self._heads:
            self.bounded_race(zeros, edits, noise, leading)

    @property
    def _exact(self) -> ExactHead:
        head = self._heads["exact"]
        assert isinstance(head, ExactHead)
        return head

    @property
    def _certified(self) -> CertifiedHead:
        head = self._heads["certified"]
        assert isinstance(head, CertifiedHead)
        return head


def ids_of(first: int, rows: int, offsets: Int64, ids: Int32, *values: Any) -> tuple[Any, ...]:
    """The CSR ids first .. first + rows - 1, and what belongs to them of `values`."""
    inside = (ids >= first) & (ids < first + rows)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside, dtype=np.int64)])
    return ends[offsets], ids[inside], *(each[inside] for each in values)


def nothing_carried(rows: int) -> Float64:
    """The sums of `Shard.race` before the first shard."""
    return np.zeros((rows, CARRIED))


def edits_or_none(edits: Edits | None, rows: int) -> Edits:
    return no_edits(rows) if edits is None else edits
