"""The exact head over shards: bit for bit the answers of `ExactHead` over one W.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, N draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from logitsieve.api.results import (
    ArrayLike,
    Candidates,
    Float32,
    Float64,
    Int32,
    Int64,
    TopK,
)
from logitsieve.heads._base.draw_options import Drawn, DrawOptions
from logitsieve.heads._base.head import Edits, Head, Knob, Softmax, checked_knobs, ready_request
from logitsieve.heads._base.spec import Arrays, PartSpec
from logitsieve.heads.exact import NO_SUM
from logitsieve.heads.sharded.shard import Best, Leading, Noise, edits_or_none, nothing_carried
from logitsieve.heads.sharded.softmax import ShardedSoftmax, best_of, joined
from logitsieve.kernels.sampling.gumbel import GUESSED
from logitsieve.kernels.sampling.shard_gumbel import OTHERS, filtered_sample
from logitsieve.kernels.topk.merge import FIELDS, TOP, VALUE

# Of what filters may leave: an id is listed if its weight is within so much of the least.
WEIGHT_SPARE = 1e-6  # nats
LOGIT_SPARE = 2.0**-49  # of a logit and of its distance from the largest


class ShardedHead:
    """The k best of the k best of all shards, each by its head of this name."""

    name: ClassVar[str]
    knob_table: ClassVar[Mapping[str, Knob]] = {}
    proves: ClassVar[bool] = True
    part: ClassVar[PartSpec | None] = None
    borrows: ClassVar[tuple[str, ...]] = ()

    def __init__(self, softmax: ShardedSoftmax) -> None:
        self._softmax, self._shards = softmax, softmax.shards
        self.knobs: Mapping[str, float] = {}

    @classmethod
    def from_arrays(cls, softmax: Softmax, arrays: Arrays, **options: Any) -> Self:
        """A head over the shards of a softmax, which have its arrays, threads and fallbacks."""
        assert isinstance(softmax, ShardedSoftmax)
        return cls(softmax)

    def with_knobs(self, **knobs: float) -> Self:
        checked_knobs(self.knob_table, {}, knobs)
        return self

    def over(self, softmax: ShardedSoftmax, heads: Mapping[str, Head]) -> Self:
        """The head over other shards of the softmax, with fallbacks among `heads`."""
        return type(self)(softmax)

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        """The k best ids of each row of `hidden` [B, D] or [D]; InvalidRequest if not valid.

        Replicated rows of lost shards are among them; rows of hidden are proven whose k-th logit
        is above the bounds of all others. ShardUnavailable where there are fewer than k rows.
        """
        hidden, rows, k = self._ready(hidden, k)
        lost, parts = self._softmax.lost, self._best(hidden, k)
        ids = np.concatenate([part.ids for part in parts], axis=1)
        logits = np.concatenate([part.logits for part in parts], axis=1)
        if ids.shape[1] >= k:
            ids, logits = best_of(ids, logits, k)
        if lost and (ids.shape[1] < k or (logits[:, -1] == -np.inf).any()):
            raise lost[0].error()
        scanned = np.array([part.scanned for part in parts]).sum(axis=0)
        scanned = np.minimum(scanned, self._softmax.vocab_size).astype(np.int32)
        exact = np.ones(rows, np.bool_)
        for shard in lost:
            exact &= ~shard.reach(hidden, logits[:, -1])
        return TopK(ids, logits.astype(np.float32), exact, scanned)

    def _best(self, hidden: Float32, k: int) -> list[Best]:
        """The k best of each shard and, of lost shards, of the rows that are replicated."""
        softmax = self._softmax
        parts = softmax.ask(len(hidden), lambda shard: shard.best(self.name, hidden, k))
        if softmax.lost and softmax.replicated is not None:
            parts.append(softmax.lost_of(softmax.replicated.best(hidden, k)))
        return parts

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """Every row of W that each shard would look at by itself for `topk`, with exact logits."""
        hidden, rows, k = self._ready(hidden, k)
        listed = self._softmax.ask(rows, lambda shard: shard.candidates(self.name, hidden, k))
        return joined(listed)

    def _ready(self, hidden: ArrayLike, k: int) -> tuple[Float32, int, int]:
        return ready_request(hidden, k, self._softmax.dim, self._softmax.vocab_size)

    def warm(self) -> None:
        """Compile every kernel of every shard, and of what stands in for one."""
        for shard in self._shards:
            shard.warm()
        for known in (self._softmax.bounds, self._softmax.replicated):
            if known is not None:
                known.warm()


class ShardedExact(ShardedHead):
    """Looks at every row of every shard."""

    name: ClassVar[str] = "exact"

    def log_z(self, hidden: Float32, scale: float, edits: Edits | None = None) -> Float64:
        """[B, 4] as `ExactHead.log_z`: the sum goes from one shard to the next."""
        edits, sums = edits_or_none(edits, len(hidden)), NO_SUM.repeat(len(hidden), axis=0)
        for shard in self._shards:
            log_z, sums = shard.log_z(hidden, scale, edits, sums)
        self._softmax.require_some(log_z[:, VALUE])
        return log_z

    def quick_log_z(self, hidden: Float32) -> Float64:
        """[B, 4] as `ExactHead.quick_log_z`: the sum goes from one shard to the next."""
        sums: Float64 | None = None
        for shard in self._shards:
            log_z, sums = shard.quick_log_z(hidden, sums)
        return log_z

    def draw(self, hidden: Float32, how: DrawOptions) -> Drawn:
        """`ExactHead.draw`.

        Every shard is read twice: for the largest logit, which all measure from, then for draws.
        With filters it is read a third time, for the ids that they may leave.
        """
        samples, seeds, step, scale, edits, top_p, min_p, *_ = how
        rows, filters = len(hidden), how.filtered
        edits, scanned = edits_or_none(edits, rows), np.full(rows, self._softmax.vocab_size)
        summed = self.log_z(hidden, scale, edits)
        noise = Noise(seeds, step, scale, summed[:, TOP].copy(), summed[:, VALUE] - GUESSED)
        leading, sums = Leading.nobody(rows, 0 if filters else samples), nothing_carried(rows)
        for shard in self._shards:
            leading, log_z, sums = shard.race(hidden, edits, noise, leading, sums)
        ids = leading.ids
        if filters:
            ids, log_z = np.empty((rows, samples), np.int32), np.empty((rows, FIELDS))
            totals = 1.0 + sums[:, OTHERS]
            listed = self._left(hidden, edits, noise, totals, top_p, min_p)
            options = totals, self._softmax.vocab_size, seeds, step, scale, top_p, min_p
            filtered_sample(*listed, *options, ids, log_z)
        return Drawn(ids, log_z, scanned.astype(np.int32))

    def _left(
        self,
        hidden: Float32,
        edits: Edits,
        noise: Noise,
        totals: Float64,
        top_p: float,
        min_p: float,
    ) -> tuple[Int64, Int32, Float64]:
        """CSR ids and logits: the best, and all that filters may leave."""
        outside = (1.0 - top_p) * totals / self._softmax.vocab_size
        spans = (np.log(np.maximum(min_p, outside)) - WEIGHT_SPARE) / noise.scale
        floors = noise.tops + spans - LOGIT_SPARE * (np.abs(noise.tops) + np.abs(spans))
        parts = self._softmax.ask(len(hidden), lambda shard: shard.above(hidden, edits, floors))
        lengths = np.array([np.diff(offsets) for offsets, _, _ in parts])
        rows = np.concatenate([np.repeat(np.arange(len(hidden)), length) for length in lengths])
        order = np.argsort(rows, kind="stable")
        ids, logits = (np.concatenate([part[i] for part in parts])[order] for i in (1, 2))
        return np.concatenate([[0], np.cumsum(lengths.sum(axis=0))]), ids, logits
