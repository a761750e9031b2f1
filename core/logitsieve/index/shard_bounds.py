"""The part `bounds` of an index in shards: what is known of the rows of a shard without it.

Shape letters: V vocabulary, D hidden size, N contexts, G groups of 16 rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.heads._base.head import Head, Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.sharded.lost import COMMON, REPLICATED
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
    """The part `bounds` of shards in their order; `replicated` are ids of W, rising."""
    shards = list(shards)
    pieces = [bounds_of_shard(shard, replicated) for shard in shards]
    names = dict.fromkeys(name for piece in pieces for name in piece)
    joined = {
        name: np.concatenate([piece[name] for piece in pieces if name in piece]) for name in names
    }
    common = {name: shards[0].sketch[name] for name in COMMON}
    return common | (joined | {REPLICATED[0]: replicated} if len(replicated) else joined)


def bounds_of_shard(shard: ShardRows, replicated: Int32) -> dict[str, np.ndarray]:
    """What a shard adds to the tensors of `bounds` that have its rows."""
    first, softmax, sketch = shard
    own = replicated[(replicated >= first) & (replicated < first + softmax.vocab_size)] - first
    order: Int32 = sketch["order"]
    places = np.flatnonzero(~np.isin(order, own))
    rows = order[places]
    arrays = {
        "coarse": regrouped(sketch["coarse"], places),
        "fine": sketch["fine"][rows],
        "bias": softmax.bias[rows],
    }
    if len(own):
        weight, bias = softmax.rows(own.astype(np.int64)), softmax.bias[own]
        arrays |= dict(zip(REPLICATED[1:], (weight, bias), strict=True))
    return arrays


def regrouped(coarse: np.ndarray, places: Int64) -> np.ndarray:
    """Groups of 16 of the rows at these places, filled up as docs/index-format.md says."""
    groups, width = len(coarse), coarse.shape[1] // LANES - COARSE_EXTRA
    codes = coarse[:, : LANES * width].reshape(groups, width // 4, LANES, 4)
    codes = codes.transpose(0, 2, 1, 3).reshape(groups * LANES, width)[places]
    extras = coarse[:, LANES * width :].copy().view(np.float32).reshape(groups, 3, LANES)
    extras = extras.transpose(0, 2, 1).reshape(groups * LANES, 3)[places]
    count = -(-len(places) // LANES)
    missing = count * LANES - len(places)
    codes = np.concatenate([codes, np.full((missing, width), NO_CODE, np.uint8)])
    filler = np.array([0.0, 0.0, -np.inf], np.float32)  # scale, rest and bias
    extras = np.concatenate([extras, np.tile(filler, (missing, 1))])
    quads = codes.reshape(count, LANES, width // 4, 4).transpose(0, 2, 1, 3)
    floats = np.ascontiguousarray(extras.reshape(count, LANES, 3).transpose(0, 2, 1))
    size = coarse.shape[1] - LANES * COARSE_EXTRA
    parts = quads.reshape(count, size), floats.reshape(count, 3 * LANES).view(np.uint8)
    return np.concatenate(parts, axis=1)


def often_computed(
    certified: Head, contexts: Float32, most: int, progress: Progress = no_progress
) -> Int32:
    """Ids, rising, of the rows that `certified` computes for the most of the contexts [N, D].

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
    return np.sort(best[counts[best] > 0]).astype(np.int32)
