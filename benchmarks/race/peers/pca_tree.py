"""PCA-tree MIPS: a tree that halves the rows along one principal direction a level.

Bachrach et al. 2014, Speeding Up the Xbox Recommender System Using a Euclidean Transformation for
Inner-Product Spaces: one more dimension makes all rows equally long, so that the nearest row has
the largest product; level l splits at the median along direction l. The paper visits the leaf of
the query and those one decision away; here `leaves` of them are visited in the order of their
distance along the split directions, so that a step aside goes where it is likeliest to pay.
Shape letters: B batch rows, D hidden size (with the bias), V vocabulary, K answers, T tree depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.race.methods import Knobs, Queries, augmented, hold_threads
from benchmarks.race.peers.kernels import best_of, fast
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax
from logitsieve.kernels.pool import run_slices

LEAF = 32  # rows in a leaf, about


class PcaTree:
    """A complete binary tree; its leaves are stretches of one permutation of the rows."""

    name = "PCA-tree MIPS"

    def __init__(self, softmax: Softmax, leaf: int = LEAF) -> None:
        self._rows_VD = augmented(softmax)
        words, dim = self._rows_VD.shape
        self._depth = max(1, min(round(np.log2(max(2, words / leaf))), dim))
        self.built: Knobs = {"depth": self._depth}
        squared_V = (self._rows_VD.astype(np.float64) ** 2).sum(axis=1)
        self._longest = np.float32(squared_V.max() ** 0.5)
        missing_V = np.sqrt(squared_V.max() - squared_V)
        longer_VD = np.concatenate([self._rows_VD, missing_V[:, None]], axis=1, dtype=np.float32)
        mean_D = longer_VD.mean(axis=0)
        _, vectors_DD = np.linalg.eigh(np.cov(longer_VD.T))
        axes_DT = vectors_DD[:, ::-1][:, : self._depth].astype(np.float32)
        self._axes_DT = np.ascontiguousarray(axes_DT[:-1])  # the query is 0 in the last dimension
        self._centre_T = (mean_D @ axes_DT).astype(np.float32)
        self._split, self._starts, self._order_V = _plant(longer_VD @ axes_DT - self._centre_T)
        self._queries = Queries(softmax.dim)
        self._threads, self._leaves = 1, 1
        arrays = (self._axes_DT, self._split, self._starts, self._order_V)
        self.nbytes = sum(array.nbytes for array in arrays)

    @property
    def settings(self) -> Sequence[Knobs]:
        """1, 2, 4 ... leaves."""
        return tuple({"leaves": 1 << power} for power in range(self._depth))

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        hold_threads(threads)
        self._threads, self._leaves = threads, int(knobs["leaves"])

    def topk(self, hidden: Float32, k: int) -> np.ndarray:
        """The query goes into the tree as long as the longest row; its length orders nothing."""
        queries = self._queries(hidden)
        length_B = np.sqrt(np.einsum("bd,bd->b", queries, queries))
        places_BT = queries @ self._axes_DT * (self._longest / length_B)[:, None] - self._centre_T
        ids = np.empty((len(queries), k), np.int64)

        def answer(start: int, stop: int) -> int:
            tree = (self._split, self._starts, self._order_V)
            ready = (queries[start:stop], places_BT[start:stop])
            search(self._rows_VD, *tree, *ready, self._leaves, ids[start:stop])
            return 0

        run_slices(answer, len(queries), self._threads)
        return ids


def _plant(places_VT: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Medians by node (heap order, root 1), starts of the leaves, rows in leaf order."""
    words, depth = places_VT.shape
    split = np.zeros(1 << depth, np.float32)
    parts = [np.arange(words, dtype=np.int32)]
    for level in range(depth):
        halves = []
        for number, part in enumerate(parts):
            part = part[np.argsort(places_VT[part, level], kind="stable")]
            middle = len(part) // 2
            split[(1 << level) + number] = places_VT[part[middle], level]
            halves += [part[:middle], part[middle:]]
        parts = halves
    starts = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    return split, starts, np.concatenate(parts)


@fast
def search(
    rows_VD: Any,
    split: Any,
    starts: Any,
    order_V: Any,
    hidden_BD: Any,
    places_BT: Any,
    leaves: int,
    ids_BK: Any,
) -> None:
    """The K best rows of the `leaves` nearest leaves of each query."""
    depth = places_BT.shape[1]
    waiting = leaves * depth + 1
    node_of, distance_of = np.empty(waiting, np.int64), np.empty(waiting, np.float32)
    listed = np.empty(order_V.size, np.int32)
    value_K = np.empty(ids_BK.shape[1], np.float32)
    for row in range(len(hidden_BD)):
        node_of[0], distance_of[0], size, count = 1, 0, 1, 0
        for _ in range(leaves):
            if size == 0:
                break
            node, distance, size = pop(node_of, distance_of, size)
            while node < split.size:
                level = 0
                while node >> (level + 1):
                    level += 1
                away = places_BT[row, level] - split[node]
                near = 2 * node + (1 if away >= 0 else 0)
                size = push(node_of, distance_of, size, near ^ 1, distance + away * away)
                node = near
            leaf = node - split.size
            for place in range(starts[leaf], starts[leaf + 1]):
                listed[count] = order_V[place]
                count += 1
        best_of(rows_VD, hidden_BD[row], listed[:count], ids_BK[row], value_K)


@fast
def push(node_of: Any, distance_of: Any, size: int, node: int, distance: Any) -> int:
    """Into a heap whose nearest node is on top."""
    place = size
    while place > 0 and distance_of[(place - 1) // 2] > distance:
        node_of[place] = node_of[(place - 1) // 2]
        distance_of[place] = distance_of[(place - 1) // 2]
        place = (place - 1) // 2
    node_of[place], distance_of[place] = node, distance
    return size + 1


@fast
def pop(node_of: Any, distance_of: Any, size: int) -> tuple[Any, Any, int]:
    """The nearest node, its distance, and how many are left."""
    node, distance, size = node_of[0], distance_of[0], size - 1
    moved, value, place = node_of[size], distance_of[size], 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and distance_of[child + 1] < distance_of[child]:
            child += 1
        if distance_of[child] >= value:
            break
        node_of[place], distance_of[place] = node_of[child], distance_of[child]
        place = child
    node_of[place], distance_of[place] = moved, value
    return node, distance, size
