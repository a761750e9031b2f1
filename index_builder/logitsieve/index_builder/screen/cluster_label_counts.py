"""Contexts routed to clusters, and the labels seen in each: counted by blocks, and summed.

Shape letters: N contexts, D hidden size, V vocabulary, C clusters, K labels a context, P observed
(cluster, label) pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.index_builder.data.contexts import Contexts
from logitsieve.index_builder.workers import Shared, Workers

COUNTED_ROWS = 1 << 18  # contexts whose counts wait to be summed


class Pairs(NamedTuple):
    """Every label seen in every cluster, by cluster, then label."""

    cluster: Int32  # [P]
    label: Int32  # [P]
    hits: Int32  # [P] rows of the cluster that have the label, m_ts
    rows: Int64  # [C] rows of each cluster, n_t


def count_pairs(
    contexts: Contexts,
    labels_NK: np.ndarray,
    centroids_CD: Float32,
    vocab_size: int,
    workers: Workers,
) -> tuple[np.ndarray, Pairs]:
    """(uint16 [N] the cluster of each context, the rows of each cluster that have each label)."""
    shared = Shared(centroids_CD, _as_it_is, (centroids_CD,))
    calls = ((shared, block, labels_NK[part], vocab_size) for part, block in contexts.parts())
    cluster_N = np.empty(contexts.rows, np.uint16)
    tally = _Tally(len(centroids_CD))
    counted = workers.map(count_block, calls)
    for part, (cluster, key, hits) in zip(contexts.spans(), counted, strict=True):
        cluster_N[part] = cluster
        tally.add(cluster, key, hits)
    return cluster_N, tally.pairs(vocab_size)


def route_block(centroids_CD: Float32, block: Float32) -> np.ndarray:
    """uint16 [N]: the cluster of each context of a block, argmax_t v_t . h (eq. 2)."""
    return np.asarray((block @ centroids_CD.T).argmax(axis=1), np.uint16)


def count_block(
    centroids_CD: Float32, block: Float32, labels_NK: np.ndarray, vocab_size: int
) -> tuple[np.ndarray, Int64, Int64]:
    """The clusters of a block's contexts, and the keys and hits of its pairs.

    The key of a pair is its cluster times V, plus its label.
    """
    cluster_N = route_block(centroids_CD, block)
    keys_NK = cluster_N.astype(np.int64)[:, None] * vocab_size + labels_NK
    return cluster_N, *np.unique(keys_NK, return_counts=True)


def _as_it_is(centroids_CD: Float32) -> Float32:
    return centroids_CD


class _Tally:
    """Sums of the counts of blocks, put together COUNTED_ROWS at a time."""

    def __init__(self, clusters: int) -> None:
        self._rows_C = np.zeros(clusters, np.int64)
        self._keys, self._hits, self._waiting = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0

    def add(self, cluster_N: np.ndarray, keys: Int64, hits: Int64) -> None:
        self._rows_C += np.bincount(cluster_N, minlength=len(self._rows_C))
        self._keys.append(keys)
        self._hits.append(hits)
        self._waiting += len(cluster_N)
        if self._waiting >= COUNTED_ROWS:
            self._join()

    def _join(self) -> None:
        keys, place = np.unique(np.concatenate(self._keys), return_inverse=True)
        hits = np.bincount(place, np.concatenate(self._hits)).astype(np.int64)
        self._keys, self._hits, self._waiting = [keys], [hits], 0

    def pairs(self, vocab_size: int) -> Pairs:
        self._join()
        return Pairs(
            cluster=(self._keys[0] // vocab_size).astype(np.int32),
            label=(self._keys[0] % vocab_size).astype(np.int32),
            hits=self._hits[0].astype(np.int32),
            rows=self._rows_C,
        )
