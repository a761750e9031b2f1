"""Attacks on answers over shards: not one bit may differ from those over one W.

How tight: nothing is, as nothing is allowed for.

Shape letters: B batch rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.random import Generator

from logitsieve.api.results import Bool, Int32
from logitsieve.heads._base.draw_options import DrawOptions
from logitsieve.heads.exact import ExactHead, interval_of
from logitsieve.heads.sharded import ALIGNED, SHARDED_HEADS, ReplicatedRows, ShardedSoftmax
from logitsieve.heads.sharded.bounded import ShardedCertified
from logitsieve.heads.sharded.dense import ShardedExact
from logitsieve.heads.sharded.lost import Bounds
from logitsieve.index.shard_parts import bounds_of, replicated_of
from tests.attacks.matrices import DIMS, Sketched, contexts_of, sketched, softmax_of
from tests.attacks.tally import Tally
from tests.sharded import cut, edits_of, rows_of

ROWS, DRAWS = 24, 3


def one_and_many(random: Generator) -> tuple[Sketched, ShardedSoftmax, list[int]]:
    """A softmax of any kind, and its rows in 1 to 6 shards of any sizes."""
    D, V = int(random.choice(DIMS)), int(random.integers(1, 6 * ALIGNED))
    victim = sketched(softmax_of(random, V, D), random)
    inner = np.flatnonzero(random.random(-(-V // ALIGNED)) < random.random())
    borders = [0, *(ALIGNED * inner[inner > 0]).tolist(), V]
    return victim, cut(victim.softmax, victim.arrays, borders), borders


def best_ids(random: Generator) -> Tally:
    """The best of both heads, with any rows replicated, and the passes for log Z."""
    victim, parts, _ = one_and_many(random)
    hidden, tally = contexts_of(random, victim.softmax, ROWS), Tally()
    k = int(min(victim.softmax.vocab_size, random.choice([1, 3, 40, 2000])))
    whole, dense = ExactHead(victim.softmax), exact_of(parts)
    replicated = replicated_of(rows_of(parts, victim.arrays), some_ids(random, victim))
    floored = ShardedSoftmax(parts.shards, None, ReplicatedRows(replicated, victim.softmax.norms))
    wanted = whole.topk(hidden, k)
    for head in (dense, ShardedCertified(parts), ShardedCertified(floored)):
        top = head.topk(hidden, k)
        tally.join(same(f"{head.name} ids", top.ids, wanted.ids))
        tally.join(same(f"{head.name} logits", top.logits, wanted.logits))
    scale = float(random.choice([1.0, 0.3, 1e-4, 100.0]))
    size = victim.softmax.vocab_size
    for edits in (None, edits_of(int(random.integers(1000)), ROWS, size, min(size, 20))):
        sums = [head.log_z(hidden, scale, edits) for head in (dense, whole)]
        tally.join(same("log Z", *sums))
    tally.join(same("quick log Z", dense.quick_log_z(hidden), whole.quick_log_z(hidden)))
    return tally


def draws(random: Generator) -> Tally:
    """Draws at all temperatures, with any filters, and the log Z that they are of."""
    victim, parts, _ = one_and_many(random)
    hidden, tally = contexts_of(random, victim.softmax, ROWS), Tally()
    seeds, step = random.integers(0, 1 << 62, ROWS).astype(np.uint64), int(random.integers(99))
    scale = float(random.choice([1.0, 1.0, 0.3, 1e-4, 100.0]))
    filters: Any = {"top_p": float(random.choice([1.0, 1.0, 0.9, 0.3, 1e-6]))}
    filters["min_p"] = float(random.choice([0.0, 0.0, 0.05, 1.0]))
    options = DrawOptions(DRAWS, seeds, step, scale, None, **filters)
    ids, fields, _ = ExactHead(victim.softmax).draw(hidden, options)
    drawn, log_z, _ = exact_of(parts).draw(hidden, options)
    tally.join(same(f"draws, {scale} {filters}", drawn, ids))
    tally.join(same(f"log Z, {scale} {filters}", log_z, fields))
    drawn, log_z, _ = ShardedCertified(parts).draw(hidden, options)
    tally.join(same(f"draws by bounds, {scale} {filters}", drawn, ids))
    _, low, high = interval_of(fields, scale).T
    _, least, most = interval_of(log_z, scale).T
    apart = (least > high) | (most < low)
    tally.add(apart, lambda row: f"{log_z[row]} apart from {low[row]} .. {high[row]}")
    return tally


def lost_bounds(random: Generator) -> Tally:
    """Answers that are called proven without some shards, with any rows of them replicated."""
    victim, parts, borders = one_and_many(random)
    softmax, tally = victim.softmax, Tally()
    hidden, ids = contexts_of(random, softmax, ROWS), some_ids(random, victim)
    rows = rows_of(parts, victim.arrays)
    bounds = Bounds(bounds_of(rows, ids), borders, softmax.norms, np.sort(ids))
    replicated = ReplicatedRows(replicated_of(rows, ids), softmax.norms)
    whole = ShardedSoftmax(parts.shards, bounds, replicated)
    for shard in parts.shards if len(parts.shards) > 1 else ():
        rest = whole.without([shard.first], known=True)
        k = int(min(3, softmax.vocab_size - shard.rows))
        wanted = ExactHead(softmax).topk(hidden, k)
        for top in (head.topk(hidden, k) for head in (exact_of(rest), ShardedCertified(rest))):
            different = (top.ids != wanted.ids) | (top.logits != wanted.logits)
            wrong = top.exact & different.any(axis=1)
            tally.add(wrong, lambda row: f"{top.ids[row]} instead of {wanted.ids[row]}")  # noqa: B023
    return tally


def some_ids(random: Generator, victim: Sketched) -> Int32:
    """Ids of rows that are replicated, in any order: one at least, in any shards."""
    size = victim.softmax.vocab_size
    count = max(1, int(size * random.choice([0.0, 0.01, 0.3])))
    return random.permutation(size)[:count].astype(np.int32)


def exact_of(parts: ShardedSoftmax) -> ShardedExact:
    options: Any = {"fallback": None, "threads": 1, "knobs": {}}
    return cast(ShardedExact, SHARDED_HEADS["exact"].from_arrays(parts, {}, **options))


def same(name: str, got: np.ndarray, wanted: np.ndarray) -> Tally:
    """Rows that differ in a bit are wrong."""
    tally, width = Tally(), got.itemsize * got[0].size
    rows = [np.ascontiguousarray(each).view(np.uint8).reshape(-1, width) for each in (got, wanted)]
    different: Bool = (rows[0] != rows[1]).any(axis=1)
    tally.add(different, lambda row: f"{name}: {got[row]} instead of {wanted[row]}")
    return tally


ATTACKS = {
    "shards-best": best_ids,
    "shards-draws": draws,
    "shards-lost": lost_bounds,
}
