"""A softmax in one piece and in shards, with ties across every border."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from logitsieve.heads import CertifiedHead, Head, Softmax
from logitsieve.heads._base.head import Edits
from logitsieve.heads.sharded import ALIGNED, SHARDED_HEADS, Shard, ShardedSoftmax
from logitsieve.index.shard_parts import ShardRows
from logitsieve.index.split import shard_borders, sketch_of_rows
from tests.synthetic import certified_arrays, make_head, make_softmax, screen_arrays

SHARDS = (1, 2, 3, 5, 8)
V, D = 8 * ALIGNED - 100, 8
DIFFERENT = 97  # rows, of which all others are copies


@cache
def softmax_of(tied: bool, size: int = V) -> Softmax:
    """V x D; where tied, every row stands in every shard several times."""
    softmax = make_softmax(size, D, seed=3)
    if not tied:
        return softmax
    places = np.arange(size) % DIFFERENT
    return Softmax(softmax.weight[places].copy(), softmax.bias[places].copy())


@cache
def sketch_of(tied: bool, size: int = V) -> dict[str, np.ndarray]:
    return certified_arrays(softmax_of(tied, size))


@cache
def head_of(name: str, tied: bool, size: int = V) -> Head:
    """A head over the softmax in one piece."""
    if name == "certified":
        return CertifiedHead.from_arrays(softmax_of(tied, size), sketch_of(tied, size))
    return make_head(name, softmax_of(tied, size))


def cut(softmax: Softmax, sketch: dict[str, np.ndarray], borders: Sequence[int]) -> ShardedSoftmax:
    """The same rows in shards that begin at the borders."""
    shards = []
    for first, last in pairwise(borders):
        rows = softmax.weight[first:last].copy(), softmax.bias[first:last].copy()
        part = Softmax(*rows, softmax.norms)
        certified = CertifiedHead.from_arrays(part, sketch_of_rows(sketch, first, last))
        heads = {"exact": make_head("exact", part), "certified": certified}
        shards.append(Shard(first, part, heads))
    return ShardedSoftmax(shards)


@cache
def shards_of(shards: int, tied: bool, size: int = V) -> ShardedSoftmax:
    borders = shard_borders(size, shards)
    return cut(softmax_of(tied, size), sketch_of(tied, size), borders)


def rows_of(softmax: ShardedSoftmax, sketch: dict[str, np.ndarray]) -> list[ShardRows]:
    """The rows and sketches that an index in these shards is written from."""
    return [
        ShardRows(
            each.first, each._softmax, sketch_of_rows(sketch, each.first, each.first + each.rows)
        )
        for each in softmax.shards
    ]


def rows_of_shards(shards: int, tied: bool) -> list[ShardRows]:
    return rows_of(shards_of(shards, tied), sketch_of(tied))


@cache
def sharded_head(name: str, shards: int, tied: bool, size: int = V) -> Head:
    """A head over the softmax in shards."""
    softmax = shards_of(shards, tied, size)
    arrays = screen_arrays(softmax_of(tied, size)) if name == "screen" else {}
    exact = SHARDED_HEADS["exact"].from_arrays(softmax, {}, fallback=None, threads=1, knobs={})
    return SHARDED_HEADS[name].from_arrays(softmax, arrays, fallback=exact, threads=1, knobs={})


def edits_of(seed: int, rows: int, size: int = V, most: int = 40) -> Edits:
    """Edits of any rows of W: half of them forbid."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, most, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = [np.sort(random.choice(size, length, replace=False)) for length in lengths]
    values = random.standard_normal(offsets[-1]) * 20
    values[random.random(values.size) < 0.5] = -np.inf
    return offsets, np.concatenate(ids).astype(np.int32), values


def shut(first: int, last: int, rows: int) -> Edits:
    """Edits that forbid the rows first .. last-1 of W."""
    offsets = np.arange(rows + 1, dtype=np.int64) * (last - first)
    ids = np.tile(np.arange(first, last, dtype=np.int32), rows)
    return offsets, ids, np.full(ids.size, -np.inf)
