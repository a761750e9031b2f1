"""Answers without one of the shards, beside the float64 top k over all rows of W.

Shape letters: N contexts, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from benchmarks.scale.indexes import contexts_of, folder_of, prepared
from logitsieve.api.errors import ShardUnavailable
from logitsieve.api.results import Float32, Int32
from logitsieve.cli.output import bars
from logitsieve.decoding import ShardedDecoder
from logitsieve.heads import Softmax
from logitsieve.heads.sharded import Shard
from logitsieve.index import Manifest, open_index
from logitsieve.index.contents import read_contents

K = 5
AT_ONCE = 1024  # contexts
ROWS = 16_384  # of W, multiplied by those


class DeadShard:
    """The proxy of a shard of which no question is answered."""

    def __init__(self, shard: Shard) -> None:
        self.first, self.rows, self.dim = shard.first, shard.rows, shard.dim
        self.norms, self.remote = shard.norms, True

    def __getattr__(self, name: str) -> Any:
        raise ShardUnavailable(self.first, self.rows)


def lost(
    words: int, shards: int, contexts: int, cache: Path, replicated: bool
) -> list[dict[str, int]]:
    """With each shard lost in turn: answers, proven ones, and wrong ones of these."""
    hidden, right = contexts_of(words, cache)[:contexts], truth(words, contexts, cache)
    found = []
    for number, part in enumerate(np.array_split(np.arange(contexts), shards)):
        decoder = without(prepared(words, shards, cache, replicated), number)
        totals = {"answers": len(part), "proven": 0, "wrong": 0, "no_row_lost": 0}
        for start in range(0, len(part), AT_ONCE):
            chosen = part[start : start + AT_ONCE]
            reply = decoder.topk(np.asarray(hidden[chosen]), K, head="certified")
            [missing] = reply.answer.rows_missing
            exact, best = reply.answer.exact, right[chosen]
            inside = (best >= missing.first) & (best < missing.first + missing.rows)
            totals["proven"] += int(exact.sum())
            totals["wrong"] += int((exact & (reply.ids != best).any(axis=1)).sum())
            totals["no_row_lost"] += int((~inside.any(axis=1)).sum())
        found.append(totals | {"shard": number + 1})
        print(found[-1], flush=True)
    return found


def without(index: Path, number: int) -> ShardedDecoder:
    """A decoder over an index in shards, of which this one does not answer."""
    shards = cast("Any", open_index(index, threads=2).softmax).shards
    manifests = [part.manifest for part in read_contents(index).shards]

    def connect(place: int) -> tuple[Manifest, Shard]:
        shard = shards[place - 1]
        chosen: Any = DeadShard(shard) if place - 1 == number else shard
        return manifests[place - 1], chosen

    return ShardedDecoder(open_index(index, connect=connect), missing="answer")


def truth(words: int, contexts: int, cache: Path) -> Int32:
    """The ids [N, K] of the largest float64 logits, the lower of equal ones; computed once."""
    path = folder_of(words, cache) / f"truth-{contexts}.npy"
    if not path.exists():
        softmax = open_index(prepared(words, 0, cache)).softmax
        hidden = np.asarray(contexts_of(words, cache)[:contexts])
        with bars() as progress:
            best = []
            for start in range(0, contexts, AT_ONCE):
                best.append(best_ids(softmax, hidden[start : start + AT_ONCE]))
                progress("float64 top k", start, contexts)
        np.save(path, np.concatenate(best))
    return cast("Int32", np.load(path))


def best_ids(softmax: Softmax, hidden: Float32) -> Int32:
    """The K best ids of each context: float32 products leave the few that float64 decides."""
    torch_hidden = torch.from_numpy(hidden.copy())
    norms = np.linalg.norm(hidden.astype(np.float64), axis=1)
    # Higham 2002, (3.5): |fl(x . y + b) - (x . y + b)| <= gamma_{D+1} (|x| |y| + |b|)
    longest, largest = softmax.norms
    error = 1.01 * (hidden.shape[1] + 1) * 2.0**-24 * (norms * longest + largest)
    listed: list[list[np.ndarray]] = [[] for _ in hidden]
    values: list[list[np.ndarray]] = [[] for _ in hidden]
    floors = np.full(len(hidden), -np.inf)
    for first in range(0, softmax.vocab_size, ROWS):
        rows = slice(first, min(first + ROWS, softmax.vocab_size))
        weight = torch.from_numpy(softmax.rows(rows).copy())
        logits = torch.addmm(torch.from_numpy(softmax.bias[rows].copy()), torch_hidden, weight.T)
        for row in np.flatnonzero(logits.amax(1).numpy() >= floors):
            own = logits[row].numpy()
            ids = np.flatnonzero(own >= floors[row])
            if len(ids) > K:
                ids = ids[own[ids] >= np.partition(own[ids], -K)[-K] - 2 * error[row]]
            listed[row].append(ids + first)
            values[row].append(own[ids])
            every = np.concatenate(values[row])
            if len(every) >= K:
                floors[row] = np.partition(every, -K)[-K] - 2 * error[row]
    return np.stack([
        _decided(softmax, h, np.concatenate(ids), np.concatenate(own), floor)
        for h, ids, own, floor in zip(hidden, listed, values, floors, strict=True)
    ])  # fmt: skip


def _decided(
    softmax: Softmax, h: Float32, ids: np.ndarray, own: Float32, floor: float
) -> np.ndarray:
    kept = ids[own >= floor]
    rows, bias = softmax.rows(kept).astype(np.float64), softmax.bias[kept].astype(np.float64)
    exact = rows @ h.astype(np.float64) + bias
    return kept[np.lexsort((kept, -exact))[:K]].astype(np.int32)
