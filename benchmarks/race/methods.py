"""The interface of every contender: built once, then set to one operating point after another.

Build knobs are arguments of the constructor, query knobs go through `set_knobs`, as in
ann-benchmarks. Shape letters: B batch rows, D hidden size, K answers, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import faiss
import numpy as np
import torch
from threadpoolctl import ThreadpoolController

from benchmarks.timing import Search
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax
from logitsieve.kernels.pool import run_slices

Knobs: TypeAlias = Mapping[str, float]
NO_KNOBS: Knobs = {}


class Method:
    """A way to the best words; `name` may repeat where only build knobs differ."""

    name: str
    kind: str  # how it finds the best words, such as "dense float32"
    nbytes: int  # memory beyond W and b
    built = NO_KNOBS  # build knobs, for the tables
    settings: Sequence[Knobs] = (NO_KNOBS,)  # operating points to try, from fast to precise
    threads = 1

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        """Answer from now on with these knobs on so many threads."""
        hold_threads(threads)
        self.threads = threads

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        """Ids [B, K] best first; -1 where a method finds too few."""
        raise NotImplementedError

    def at(self, threads: int, knobs: Knobs) -> Search:
        self.set_knobs(threads, knobs)
        return self.topk


@dataclass(frozen=True)
class Entrant:
    """A method before it is built; `seconds` is known where it was built before."""

    name: str
    make: Callable[[], Method]
    seconds: float | None = None


class SlicedPeer(Method):
    """A compiled loop over slices of the rows, one a thread, with one query knob."""

    def __init__(self, softmax: Softmax) -> None:
        self._queries, self._knob = Queries(softmax.dim), 1

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        super().set_knobs(threads, knobs)
        [knob] = knobs.values()
        self._knob = int(knob)

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        queries = self._queries(hidden_states)
        ids = np.empty((len(queries), k), np.int64)

        def answer(start: int, stop: int) -> int:
            self.answer(queries[start:stop], start, ids[start:stop])
            return 0

        run_slices(answer, len(queries), self.threads)
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


def best_places(values: np.ndarray, k: int) -> np.ndarray:
    """Places of the k largest of each row, largest first, by numpy."""
    if k >= values.shape[1]:
        return np.argsort(-values, axis=1)
    places = np.argpartition(values, -k, axis=1)[:, -k:]
    order = np.argsort(-np.take_along_axis(values, places, 1), axis=1)
    return np.take_along_axis(places, order, 1)


@lru_cache(maxsize=2)
def augmented(softmax: Softmax) -> Float32:
    """float32 [V, D + 1]: the bias is one more dimension, of ones in the query. Shared."""
    return np.concatenate([softmax.weight, softmax.bias[:, None]], axis=1)


class Queries:
    """Contexts with a one at the end, in an array that is used again."""

    def __init__(self, dim: int, padded: int | None = None) -> None:
        self._dim, self._width = dim, padded or dim + 1
        self._room: dict[int, Float32] = {}

    def __call__(self, hidden_states: Float32) -> Float32:
        """float32 [B, D + 1], or wider with zeros at the end."""
        rows = len(hidden_states)
        found = self._room.get(rows)
        if found is None:
            found = self._room[rows] = np.zeros((rows, self._width), np.float32)
            found[:, self._dim] = 1
        found[:, : self._dim] = hidden_states
        return found
