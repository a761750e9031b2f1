"""The parts of an index in shards that lie beside these: `bounds` and `replicated`.

Shape letters: V vocabulary, D hidden size, N contexts, G groups of 16 rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.heads._base.head import Head, Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.sharded.lost import COMMON
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA
from logitsieve.utils.options import Progress, no_progress

NO_CODE = 128  # of a coordinate that is not there
COUNTED_K = 10  # answers of a context, whose candidates are counted
AT_ONCE = 512  # contexts


class ShardRows(NamedTuple):
    """The rows of W from `first` on that a shard has, and its sketch."""

    first: int
    softmax: Softmax
    sketch: Arrays


def bounds_of(shards: Iterable[ShardRows], replicated: Int32) -> dict[str, np.ndarray]:
    """The part `bounds` of shards in their order; `replicated` are ids that it has not."""
    shards = list(shards)
    pieces = [bounds_of_shard(shard, replicated) for shard in shards]
    return _common(shards) | _joined(pieces)


def bounds_of_shard(shard: ShardRows, replicated: Int32) -> dict[str, np.ndarray]:
    """What a shard adds to the tensors of `bounds` that have its rows."""
    order: Int32 = shard.sketch["order"]
    places = np.flatnonzero(~np.isin(order, replicated - shard.first))
    rows = order[places]
    return {
        "coarse": regrouped(shard.sketch["coarse"], places),
        "fine": shard.sketch["fine"][rows],
        "bias": shard.softmax.bias[rows],
    }


def replicated_of(shards: Iterable[ShardRows], ids: Int32) -> dict[str, np.ndarray]:
    """The part `replicated` of shards in their order; `ids` are in the order of its `coarse`."""
    shards, rising = list(shards), np.sort(ids)
    own = [rising[(rising >= s.first) & (rising < s.first + s.softmax.vocab_size)] for s in shards]
    joined = _joined([_rows_of(s, ids) for s, ids in zip(shards, own, strict=True) if len(ids)])
    codes, extras = joined.pop("codes"), joined.pop("extras")
    order = np.searchsorted(rising, ids).astype(np.int32)
    coarse = _grouped(codes[order], extras[order])
    return _common(shards) | joined | {"ids": rising, "order": order, "coarse": coarse}


def _rows_of(shard: ShardRows, ids: Int32) -> dict[str, np.ndarray]:
    """What a shard adds to the tensors of `replicated`: its rows with these ids."""
    first, softmax, sketch = shard
    rows, places = ids.astype(np.int64) - first, np.empty(softmax.vocab_size, np.int64)
    places[sketch["order"]] = np.arange(softmax.vocab_size)
    codes, extras = _rows_at(sketch["coarse"], places[rows])
    return {
        "weight": softmax.rows(rows),
        "bias": softmax.bias[rows],
        "fine": sketch["fine"][rows],
        "codes": codes,
        "extras": extras,
    }


def _joined(pieces: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _common(shards: Sequence[ShardRows]) -> dict[str, np.ndarray]:
    return {name: shards[0].sketch[name] for name in COMMON}


def regrouped(coarse: np.ndarray, places: Int64) -> np.ndarray:
    """Groups of 16 of the rows at these places, filled up as docs/index-format.md says."""
    return _grouped(*_rows_at(coarse, places))


def _rows_at(coarse: np.ndarray, places: Int64) -> tuple[np.ndarray, np.ndarray]:
    """Codes uint8 [N, F], and scales, rests and biases float32 [N, 3] of the rows at places [N]."""
    groups, width = len(coarse), coarse.shape[1] // LANES - COARSE_EXTRA
    codes = coarse[:, : LANES * width].reshape(groups, width // 4, LANES, 4)
    extras = coarse[:, LANES * width :].view(np.float32).reshape(groups, 3, LANES)
    group, lane = places // LANES, places % LANES
    return codes[group, :, lane].reshape(-1, width), extras[group, :, lane]


def _grouped(codes: np.ndarray, extras: np.ndarray) -> np.ndarray:
    """uint8 [G, 16 (F + 12)], the rows of `_rows_at` in groups of 16."""
    count, width = -(-len(codes) // LANES), codes.shape[1]
    missing = count * LANES - len(codes)
    codes = np.concatenate([codes, np.full((missing, width), NO_CODE, np.uint8)])
    filler = np.array([0.0, 0.0, -np.inf], np.float32)  # scale, rest and bias
    extras = np.concatenate([extras, np.tile(filler, (missing, 1))])
    quads = codes.reshape(count, LANES, width // 4, 4).transpose(0, 2, 1, 3)
    floats = np.ascontiguousarray(extras.reshape(count, LANES, 3).transpose(0, 2, 1))
    parts = quads.reshape(count, LANES * width), floats.reshape(count, 3 * LANES).view(np.uint8)
    return np.concatenate(parts, axis=1)


def often_computed(
    certified: Head, contexts: Float32, most: int, progress: Progress = no_progress
) -> Int32:
    """Ids of the rows that `certified` computes for the most of the contexts [N, D], these first.

    At most `most`, and none that it computes for no context.
    """
    counts = np.zeros(0, np.int64)
    for start in range(0, len(contexts), AT_ONCE):
        part = contexts[start : start + AT_ONCE]
        listed = np.bincount(certified.candidates(part, COUNTED_K).ids, minlength=len(counts))
        listed[: len(counts)] += counts
        counts = listed
        progress("rows that answers need", min(start + AT_ONCE, len(contexts)), len(contexts))
    best = np.argsort(-counts, kind="stable")[:most]
    return best[counts[best] > 0].astype(np.int32)
