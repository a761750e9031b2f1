"""The certified head over shards, each with a sketch of its rows.

Ids and logits are those of `CertifiedHead` over one W, bit for bit. Its log Z is another estimate,
in another proven interval: the sum of the shards' own.

Shape letters: B batch rows, D hidden size, V vocabulary, N draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import ClassVar

import numpy as np

from logitsieve.api.results import Bool, Float32, Float64, Int32, UInt64
from logitsieve.heads import certified
from logitsieve.heads._base.draw_options import Drawn, DrawOptions
from logitsieve.heads._base.head import Edits, edits_of_rows
from logitsieve.heads.sharded.dense import ShardedExact, ShardedHead
from logitsieve.heads.sharded.shard import Best, Leading, Noise, edits_or_none
from logitsieve.heads.sharded.softmax import ShardedSoftmax
from logitsieve.kernels.intervals.draws import GUESSED_BY_BOUNDS
from logitsieve.kernels.sampling.printing import ROUNDED
from logitsieve.kernels.topk.merge import FIELDS, VALUE

SUMMED = 2.0**-50  # of a sum of exponentials, for each: more than they and their sum are rounded by


class ShardedCertified(ShardedHead):
    """Bounds every row of every shard, and computes those whose bound leaves a doubt."""

    name: ClassVar[str] = "certified"

    def __init__(self, softmax: ShardedSoftmax) -> None:
        super().__init__(softmax)
        self._exact = ShardedExact(softmax)

    def _best(self, hidden: Float32, k: int) -> list[Best]:
        """The k best of each shard, which looks for no row below a floor that k rows reach.

        These are replicated rows, or else those of the first shard if it is in this process: of one
        elsewhere the others would wait for the answer.
        """
        softmax, known, parts, asked = self._softmax, None, list[Best](), 0
        if softmax.replicated is not None:
            known = softmax.replicated.best(hidden, k)
            parts = [softmax.lost_of(known)]
        elif len(self._shards) > 1 and not self._shards[0].remote:
            known = self._shards[0].best(self.name, hidden, k)
            parts, asked = [known], 1
        floors = None if known is None or known.ids.shape[1] < k else known.logits[:, -1]
        return parts + softmax.ask(
            len(hidden), lambda shard: shard.best(self.name, hidden, k, floors), asked
        )

    def log_z(
        self, hidden: Float32, scale: float, edits: Edits | None = None, width: float = inf
    ) -> Float64:
        """[B, 4] an estimate of log Z of all e^{scale x}, and the two numbers that it is between.

        No interval is wider than the widest of the shards' own, which are `width` nats at most, but
        for rows of which a shard had to compute all logits, in float32 where that can do.
        """
        changed = edits_or_none(edits, len(hidden))
        parts = self._softmax.ask(
            len(hidden), lambda shard: shard.bounded_log_z(hidden, scale, changed, width)
        )
        self._softmax.require_some(np.max(parts, axis=0)[:, VALUE])
        return summed(parts, scale)

    def draw(self, hidden: Float32, how: DrawOptions) -> Drawn:
        """The draws of head `exact`, and an interval of log Z.

        A row on which a sketch says too little gets all logits, and so do all rows with filters, or
        where that takes less time than so many draws.
        """
        samples, seeds, step, scale, edits, top_p, min_p, width, _ = how
        rows, edits = len(hidden), edits_or_none(edits, len(hidden))
        ids, scanned = np.empty((rows, samples), np.int32), np.empty(rows, np.int32)
        log_z, found = np.empty((rows, FIELDS)), np.zeros(rows, np.bool_)
        size = self._softmax.vocab_size * self._softmax.dim
        few = samples * certified.PRODUCTS_A_DRAW < size
        if few and top_p == 1.0 and min_p == 0.0:
            found = self._race(hidden, seeds, step, scale, edits, width, (ids, log_z, scanned))
        if not found.all():
            rest = np.flatnonzero(~found)
            drawn = self._exact.draw(hidden[rest], how._replace(edits=edits).rows(rest))
            ids[rest], log_z[rest], scanned[rest] = drawn
        return Drawn(ids, log_z, scanned)

    def _race(
        self,
        hidden: Float32,
        seeds: UInt64,
        step: int,
        scale: float,
        edits: Edits,
        width: float,
        answers: tuple[Int32, Float64, Int32],
    ) -> Bool:
        """Fill the answers of `draw` by bounds; [B] of which rows the sketches decide them."""
        parts = self._softmax.ask(
            len(hidden), lambda shard: shard.bound_log_z(hidden, scale, edits, width)
        )
        found: Bool = np.all([part[3] for part in parts], axis=0)
        if not (rows := np.flatnonzero(found)).size:
            return found
        ids, log_z, scanned = answers
        log_z[rows] = summed([part[0][rows] for part in parts], scale)
        tops = np.max([part[1][rows] for part in parts], axis=0)
        guesses = log_z[rows, VALUE] - scale * tops - GUESSED_BY_BOUNDS
        noise = Noise(seeds[rows], step, scale, tops, guesses)
        leading, hidden = Leading.nobody(len(rows), ids.shape[1]), hidden[rows]
        edits, computed = edits_of_rows(edits, rows), np.sum([part[2][rows] for part in parts], 0)
        for shard in self._shards:
            leading, more, decided = shard.bounded_race(hidden, edits, noise, leading)
            found[rows] &= decided
            computed += more
        ids[rows], scanned[rows] = leading.ids, np.minimum(computed, self._softmax.vocab_size)
        return found


def summed(parts: Sequence[Float64], scale: float) -> Float64:
    """log of the sum of exponentials of estimates and intervals [B, 4], rounded outward."""
    stacked = np.stack([scale * part[:, :1] + part[:, VALUE:] for part in parts])  # [S, B, 3]
    tops = stacked.max(axis=0)
    sums = np.exp(stacked - tops).sum(axis=0)
    off = np.array([0.0, -1.0, 1.0]) * len(parts) * SUMMED
    off = off + np.array([0.0, -1.0, 1.0]) * ROUNDED * (np.abs(tops) + np.log(sums))
    return np.pad(tops + np.log(sums) + off, ((0, 0), (1, 0)))
