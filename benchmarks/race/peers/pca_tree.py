"""PCA-tree MIPS: a tree that halves the rows along one principal direction a level.

Bachrach et al. 2014, Speeding Up the Xbox Recommender System Using a Euclidean Transformation for
Inner-Product Spaces: one more dimension makes all rows equally long, so that the nearest row has
the largest product; level l splits at the median along direction l. The paper visits the leaf of
the query and those one decision away; here `leaves` of them are visited in the order of their
distance along the split directions, so that a step aside goes where it is likeliest to pay.
Shape letters: B batch rows, D hidden size (with the bias), V vocabulary, K answers, T tree depth.
"""

import heapq
from typing import Any

import numpy as np

from benchmarks.race.methods import SlicedPeer, augmented
from benchmarks.race.peers.kernels import best_of, fast
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax
from logitsieve.index_builder.reduction import augmented as equally_long

LEAF = 32  # rows in a leaf, about


class PcaTree(SlicedPeer):
    """A complete binary tree; its leaves are stretches of one permutation of the rows."""

    name = "PCA-tree MIPS"
    kind = "approximate search"

    def __init__(self, softmax: Softmax, leaf: int = LEAF) -> None:
        super().__init__(softmax)
        self._rows_VD, longer_VD = augmented(softmax), equally_long(softmax)
        words, dim = self._rows_VD.shape
        depth = max(1, min(round(np.log2(max(2, words / leaf))), dim))
        self.built = {"depth": depth}
        self.settings = [{"leaves": 1 << power} for power in range(depth)]
        mean_D = longer_VD.mean(axis=0)
        _, vectors_DD = np.linalg.eigh(np.cov(longer_VD.T))
        axes_DT = vectors_DD[:, ::-1][:, :depth].astype(np.float32)
        self._axes_DT = np.ascontiguousarray(axes_DT[:-1])  # the query is 0 in the last dimension
        self._centre_T = (mean_D @ axes_DT).astype(np.float32)
        self._tree = _plant(longer_VD @ axes_DT - self._centre_T)
        self.nbytes = self._axes_DT.nbytes + sum(array.nbytes for array in self._tree)

    def answer(self, queries: Float32, start: int, ids: np.ndarray) -> None:
        """The knob is `leaves`; the query goes into the tree as long as the rows."""
        length_B = np.sqrt(np.einsum("bd,bd->b", queries, queries))
        places_BT = queries @ self._axes_DT / length_B[:, None] - self._centre_T
        search(self._rows_VD, *self._tree, queries, places_BT, self._knob, ids)


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
    listed = np.empty(order_V.size, np.int32)
    value_K = np.empty(ids_BK.shape[1], np.float32)
    for row in range(len(hidden_BD)):
        waiting, count = [(np.float32(0), 1)], 0  # nodes by their distance
        for _ in range(leaves):
            if not waiting:
                break
            distance, node = heapq.heappop(waiting)
            level = 0
            while node < split.size:
                while node >> (level + 1):
                    level += 1
                away = places_BT[row, level] - split[node]
                near = 2 * node + (1 if away >= 0 else 0)
                heapq.heappush(waiting, (distance + away * away, near ^ 1))
                node = near
            leaf = node - split.size
            for place in range(starts[leaf], starts[leaf + 1]):
                listed[count] = order_V[place]
                count += 1
        best_of(rows_VD, hidden_BD[row], listed[:count], ids_BK[row], value_K)
