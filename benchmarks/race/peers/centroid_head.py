"""Centroids with up to 128 words each: the geometry of the output head of Gemma 4's drafters.

Those have 2,048 centroids, trained with the model, for 262,144 tokens, score all of them and
compute the logits of the 32 best centroids' tokens. Here they are fitted to a frozen W: balanced
k-means of its rows (bias included), V / 128 clusters, with the rows of each side by side.
Shape letters: B batch rows, C centroids, D hidden size (with the bias), V vocabulary, P probed.
"""

from typing import Any

import faiss
import numpy as np

from benchmarks.race.methods import SlicedPeer, augmented
from benchmarks.race.peers.kernels import dot, fast, offer
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax

WORDS = 128  # of a centroid, at most
PROBES = (1, 2, 4, 8, 16, 32)  # the drafters': 32
NEAREST = 32  # centroids that a word is offered to at once
ROUNDS = 10  # of balanced assignment and new means


class CentroidHead(SlicedPeer):
    """W once more in the order of the clusters."""

    name = "centroids of 128 words"
    kind = "clusters of words"

    def __init__(self, softmax: Softmax) -> None:
        super().__init__(softmax)
        rows_VD = augmented(softmax)
        owner_V, centroids_CD = balanced_clusters(rows_VD, WORDS)
        self.built = {"centroids": len(centroids_CD)}
        self.settings = [{"probes": count} for count in PROBES if count <= len(centroids_CD)]
        ids_V = np.argsort(owner_V, kind="stable")
        counts = np.bincount(owner_V, minlength=len(centroids_CD))
        offsets_C = np.concatenate([[0], np.cumsum(counts)])
        self._arrays = centroids_CD, offsets_C, rows_VD[ids_V], ids_V
        self.nbytes = sum(array.nbytes for array in self._arrays)

    def answer(self, queries: Float32, start: int, ids: np.ndarray) -> None:
        """The knob is `probes`, centroids whose words get their logits."""
        search(*self._arrays, queries, self._knob, ids)


@fast
def search(
    centroids_CD: Any,
    offsets_C: Any,
    rows_VD: Any,
    ids_V: Any,
    hidden_BD: Any,
    probed: int,
    ids_BK: Any,
) -> None:
    """The K best words of the `probed` best centroids."""
    best_P, score_P = np.empty(probed, np.int64), np.empty(probed, np.float32)
    value_K = np.empty(ids_BK.shape[1], np.float32)
    for b in range(len(hidden_BD)):
        best_P[:], ids_BK[b] = -1, -1
        score_P[:], value_K[:] = -np.inf, -np.inf
        for c in range(len(centroids_CD)):
            score = dot(centroids_CD[c], hidden_BD[b])
            if score > score_P[-1]:
                offer(best_P, score_P, c, score)
        for cluster in best_P:
            for place in range(offsets_C[cluster], offsets_C[cluster + 1]):
                logit = dot(rows_VD[place], hidden_BD[b])
                if logit > value_K[-1]:
                    offer(ids_BK[b], value_K, ids_V[place], logit)


def balanced_clusters(rows_VD: Float32, size: int) -> tuple[np.ndarray, Float32]:
    """The cluster of each row, none with more than `size` rows, and the clusters' means."""
    count = -(-len(rows_VD) // size)
    kmeans = faiss.Kmeans(
        rows_VD.shape[1], count, niter=20, seed=1, min_points_per_centroid=1,
        max_points_per_centroid=4 * size,
    )  # fmt: skip
    kmeans.train(rows_VD)
    means_CD = np.asarray(kmeans.centroids)
    for _ in range(ROUNDS):
        owner_V = assign(rows_VD, means_CD, size)
        order = np.argsort(owner_V, kind="stable")
        taken, starts = np.unique(owner_V[order], return_index=True)
        sizes = np.diff(np.append(starts, len(order)))
        means_CD[taken] = np.add.reduceat(rows_VD[order], starts) / sizes[:, None]
    return owner_V, means_CD


def assign(rows_VD: Float32, means_CD: Float32, size: int) -> np.ndarray:
    """Give each row to a mean with room, the closest pairs of row and mean first."""
    owner_V = np.full(len(rows_VD), -1)
    room_C = np.full(len(means_CD), size)
    while len(left := np.flatnonzero(owner_V < 0)):
        with_room = np.flatnonzero(room_C)
        index = faiss.IndexFlatL2(rows_VD.shape[1])
        index.add(means_CD[with_room])
        nearest = min(NEAREST, len(with_room))
        distances, near = index.search(rows_VD[left], nearest)
        order = np.argsort(distances, axis=None)
        take(left[order // nearest], with_room[near.ravel()[order]], owner_V, room_C)
    return owner_V


@fast
def take(words: Any, clusters: Any, owner_V: Any, room_C: Any) -> None:
    """Go through pairs of a word and a cluster: a word goes to its first one that has room."""
    for number in range(words.size):
        word, cluster = words[number], clusters[number]
        if owner_V[word] < 0 and room_C[cluster] > 0:
            owner_V[word] = cluster
            room_C[cluster] -= 1
