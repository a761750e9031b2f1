"""The interface of every contender: built once, then set to one operating point after another.

Build knobs are arguments of the constructor, query knobs go through `set_knobs`, as in
ann-benchmarks. Shape letters: B batch rows, D hidden size, K answers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol, TypeAlias

import faiss
import numpy as np
import torch
from threadpoolctl import ThreadpoolController

from logitsieve.api.results import Float32
from logitsieve.heads import Softmax
from logitsieve.kernels.pool import run_slices

Knobs: TypeAlias = Mapping[str, float]
NO_KNOBS: Knobs = {}


class Method(Protocol):
    """A way to the best words; `name` may repeat where only build knobs differ."""

    name: str
    built: Knobs  # build knobs, for the tables

    @property
    def settings(self) -> Sequence[Knobs]:
        """Operating points to try, from fast to precise."""
        ...

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        """Answer from now on with these knobs on so many threads."""
        ...

    def topk(self, hidden: Float32, k: int) -> np.ndarray:
        """Ids [B, K] best first; -1 where a method finds too few."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory beyond W and b."""
        ...


class Peer:
    """A method with nothing to set but its threads; the default of what contenders share."""

    built = NO_KNOBS

    @property
    def settings(self) -> Sequence[Knobs]:
        """Operating points to try, from fast to precise."""
        return ({},)

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        """Hold the libraries to so many threads."""
        hold_threads(threads)


class SlicedPeer(Peer):
    """A compiled loop over slices of the rows, one a thread, with one query knob."""

    def __init__(self, softmax: Softmax) -> None:
        self._queries = Queries(softmax.dim)
        self._threads, self._knob = 1, 1

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        """Take the only knob."""
        hold_threads(threads)
        self._threads, [knob] = threads, knobs.values()
        self._knob = int(knob)

    def topk(self, hidden: Float32, k: int) -> np.ndarray:
        """Slices of rows on threads."""
        queries = self._queries(hidden)
        ids = np.empty((len(queries), k), np.int64)

        def answer(start: int, stop: int) -> int:
            self.answer(queries[start:stop], start, ids[start:stop])
            return 0

        run_slices(answer, len(queries), self._threads)
        return ids

    def answer(self, queries: Float32, start: int, ids: np.ndarray) -> None:
        """Fill ids [B, K] of queries [B, D + 1], the rows of the batch from `start` on."""
        raise NotImplementedError


_pools = ThreadpoolController()


def hold_threads(threads: int) -> None:
    """Hold BLAS, OpenMP, torch and faiss to so many threads."""
    _pools.limit(limits=threads)
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)


def best_ids(logits: Float32, k: int) -> np.ndarray:
    """Ids int64 [B, K] of the largest logits, best first: torch selects faster than numpy."""
    return torch.topk(torch.from_numpy(logits), k)[1].numpy()


@lru_cache(maxsize=2)
def augmented(softmax: Softmax) -> Float32:
    """float32 [V, D + 1]: the bias is one more dimension, of ones in the query. Shared."""
    return np.concatenate([softmax.weight, softmax.bias[:, None]], axis=1)


class Queries:
    """Contexts with a one at the end, in an array that is used again."""

    def __init__(self, dim: int, padded: int | None = None) -> None:
        self._dim, self._width = dim, padded or dim + 1
        self._room: dict[int, Float32] = {}

    def __call__(self, hidden: Float32) -> Float32:
        """float32 [B, D + 1], or wider with zeros at the end."""
        rows = len(hidden)
        found = self._room.get(rows)
        if found is None:
            found = self._room[rows] = np.zeros((rows, self._width), np.float32)
            found[:, self._dim] = 1
        found[:, : self._dim] = hidden
        return found
