"""The exact best ids of every context: blocks of contexts against shards of W, merged exactly.

Logits have the same bits whatever rows are computed beside them, so the merged labels are those of
one pass over W. Shape letters: N contexts, B contexts of a block, D hidden size, V vocabulary,
K labels a context.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Float64, Int32
from logitsieve.heads import HEADS, Softmax
from logitsieve.heads.sharded import ALIGNED, Shard
from logitsieve.heads.sharded.softmax import best_of
from logitsieve.index_builder.data.arrays import reserve
from logitsieve.index_builder.data.contexts import Contexts
from logitsieve.index_builder.workers import Shared, Workers
from logitsieve.utils.environment import name_in_errors
from logitsieve.utils.stored import StoredMatrix

LABEL_ROWS = 1024  # contexts of a block
SHARD_BYTES = 1 << 30  # of W, which a worker has to hold at once


def exact_labels(
    shards: Sequence[Shared[Shard]],
    contexts: Contexts,
    depth: int,
    file: Path,
    progress: Callable[[int, int], None],
    workers: Workers,
) -> np.ndarray:
    """[N, K] ids of the exact top `depth` over all shards of W, best first, in a mapped file.

    `workers` keep the blocks under the name of the file. InvalidRequest names a context that is
    too large.
    """
    vocab_size = sum(shard.value.rows for shard in shards)
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.int32
    with name_in_errors(file):
        labels = np.lib.format.open_memmap(file, "w+", dtype, (contexts.rows, depth))
    reserve(file, labels, 0, contexts.rows)

    def calls() -> Iterator[tuple[Any, ...]]:
        for block in contexts.blocks(LABEL_ROWS):
            for shard in shards:
                yield shard, block, depth

    results = workers.map(best_of_shard, calls(), file.stem)
    for part in contexts.spans(LABEL_ROWS):
        try:
            found = [next(results) for _ in shards]
        except InvalidRequest as error:
            if (row := re.fullmatch(r"hidden\[(\d+)\]", error.field)) is None:
                raise
            field = f"{contexts.field}[{contexts.number(part.start + int(row[1]))}]"
            raise InvalidRequest(field, error.got, error.allowed) from error
        ids, logits = (np.concatenate(each, axis=1) for each in zip(*found, strict=True))
        labels[part] = best_of(ids, logits, depth)[0]
        progress(part.stop, contexts.rows)
    return labels


def shards_of(softmax: Softmax, shard_bytes: int = SHARD_BYTES) -> list[Shared[Shard]]:
    """W in shards of at most that many bytes, or of the least rows that a shard may have."""
    rows = max(ALIGNED, shard_bytes // softmax.matrix.row_bytes // ALIGNED * ALIGNED)
    if rows >= softmax.vocab_size:
        return [_shared(softmax, 0)]
    parts = (slice(first, first + rows) for first in range(0, softmax.vocab_size, rows))
    return [
        _shared(Softmax(softmax.matrix[part], softmax.bias[part], softmax.norms), part.start)
        for part in parts
    ]


def _shared(softmax: Softmax, first: int) -> Shared[Shard]:
    options = softmax.matrix.kind, first, softmax.norms
    arrays = softmax.stored, softmax.bias
    return Shared(_shard(softmax, first), _make_shard, arrays, options)


def _make_shard(
    stored: np.ndarray, bias: Float32, kind: str, first: int, norms: tuple[float, float]
) -> Shard:
    return _shard(Softmax(StoredMatrix(kind, stored), bias, norms), first)


def _shard(softmax: Softmax, first: int) -> Shard:
    exact = HEADS["exact"].from_arrays(softmax, {}, fallback=None, threads=1, knobs={})
    return Shard(first, softmax, {"exact": exact})


def best_of_shard(shard: Shard, block: Float32, depth: int) -> tuple[Int32, Float64]:
    """The best ids of a shard for each context [B, D], and their logits [B, K]; K <= `depth`."""
    best = shard.best("exact", block, depth)
    return best.ids, best.logits
