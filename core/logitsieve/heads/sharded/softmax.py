"""A softmax whose rows lie in several shards: exact logits of ids, wherever these are.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Candidates, Float32, Float64, Int32, Int64
from logitsieve.heads._base.head import Softmax
from logitsieve.heads.sharded.lost import Bounds, LostShard
from logitsieve.heads.sharded.replicated import ReplicatedRows
from logitsieve.heads.sharded.shard import Best, Shard
from logitsieve.kernels.pool import run_each
from logitsieve.kernels.topk.descriptor import norms_descriptor

T = TypeVar("T")


class ShardedSoftmax(Softmax):
    """The softmax of shards that follow each other, the first from id 0.

    No address has all of W: what reads that (`descriptor`, `stored`, `weight`) is refused. Logits
    of rows in `lost` shards are -inf; `bounds` and `replicated` tell what is known of these. Up to
    `threads` shards are asked side by side for few rows of hidden; for many, each uses them.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        bounds: Bounds | None = None,
        replicated: ReplicatedRows | None = None,
        lost: Sequence[LostShard] = (),
        threads: int = 1,
    ) -> None:
        parts: list[Shard | LostShard] = [*shards, *lost]
        spans = sorted((each.first, each.first + each.rows) for each in parts)
        assert [first for first, _ in spans] == [0, *(end for _, end in spans[:-1])]
        self.shards, self.lost = tuple(shards), tuple(lost)
        self.bounds, self.replicated = bounds, replicated
        self._vocab_size, self._dim, self._threads = spans[-1][1], shards[0].dim, threads

    def without(self, firsts: Collection[int], *, known: bool) -> ShardedSoftmax:
        """The same without the shards that begin there; ShardUnavailable for all of them.

        With what lies beside the shards in their place if that is to be `known`.
        """
        bounds, replicated = (self.bounds, self.replicated) if known else (None, None)
        lost = [
            LostShard(shard.first, shard.rows, bounds)
            for shard in self.shards
            if shard.first in firsts
        ]
        if len(lost) == len(self.shards):
            raise lost[0].error()
        kept = [shard for shard in self.shards if shard.first not in firsts]
        lost = [*self.lost, *lost]
        return ShardedSoftmax(kept, bounds, replicated, lost, self._threads)

    def ask(self, rows: int, question: Callable[[Shard], T], first: int = 0) -> list[T]:
        """The shards' answers to a question about so many rows of hidden, from shard `first` on."""
        begun = [shard.begin(question) for shard in self.shards[first:]]
        return run_each(begun, rows, self._threads)

    def lost_of(self, best: Best) -> Best:
        """`best` with logits of -inf but for rows of lost shards."""
        rows = np.zeros(best.ids.shape, np.bool_)
        for shard in self.lost:
            rows |= (best.ids >= shard.first) & (best.ids < shard.first + shard.rows)
        return best._replace(logits=np.where(rows, best.logits, -np.inf))

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def dim(self) -> int:
        return self._dim

    def require_some(self, log_z: Float64) -> None:
        """ShardUnavailable where a row's log Z [B] is -inf: edits leave none but lost rows."""
        if self.lost and (log_z == -np.inf).any():
            raise self.lost[0].error()

    def rows(self, rows: slice | Int64) -> Float32:
        """float32 [R, D] of these rows."""
        chosen = np.arange(self.vocab_size)[rows]
        values = np.empty((len(chosen), self.dim), np.float32)
        for shard in self.shards:
            inside = (chosen >= shard.first) & (chosen < shard.first + shard.rows)
            if inside.any():
                values[inside] = shard.weight(chosen[inside])
        return values

    def logits64(self, hidden: Float32, offsets: Int64, ids: Int32) -> Float64:
        """Exact logits of the ids that each row of hidden [B, D] owns (CSR), in float64.

        InvalidRequest for a row of hidden that is not finite or too large, also if it owns no ids.
        """
        values, begun = np.full(ids.size, -np.inf), []
        for shard in self.shards:
            inside = (ids >= shard.first) & (ids < shard.first + shard.rows)
            if inside.any() or shard is self.shards[0]:  # which refuses what any would
                begun.append((inside, shard.begin(lambda one: one.logits64(hidden, offsets, ids))))
        for inside, answer in begun:
            values[inside] = answer()
        return values

    @cached_property
    def limits(self) -> Int64:
        """A descriptor that says which rows of hidden are refused, and has no W."""
        return norms_descriptor(self.vocab_size, self.dim, *self.shards[0].norms)

    @cached_property
    def descriptor(self) -> Int64:
        """InvalidRequest: it is that of one W."""
        allowed = "an index in one piece, for normalizer 'sampled' and draws that are not proven"
        raise InvalidRequest("index", f"{len(self.shards)} shards", allowed)


def best_of(ids: Int32, logits: Float64, k: int) -> tuple[Int32, Float64]:
    """The k best of ids and logits [B, M], logits falling, equal ones by the lower id."""
    order = np.lexsort((ids, -logits))[:, :k]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(logits, order, axis=1)


def joined(parts: Sequence[Candidates]) -> Candidates:
    """Candidates of several shards, those of each row in the order of the shards."""
    lengths = np.array([np.diff(part.offsets) for part in parts])  # [S, B]
    rows = np.concatenate([np.repeat(np.arange(lengths.shape[1]), length) for length in lengths])
    order = np.argsort(rows, kind="stable")
    return Candidates(
        np.concatenate([[0], np.cumsum(lengths.sum(axis=0))]),
        np.concatenate([part.ids for part in parts])[order],
        np.concatenate([part.logits for part in parts])[order],
        np.max([part.upper for part in parts], axis=0),
    )
