from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Bool, Float32, Float64, Int32, Int64
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fitting import FitInputs
from logitsieve.index_builder.workers import Shared

LEAST_REACH = 0.05  # a lower cosine is no sign of belonging to a cluster
MOST_PROBES = 3  # R: clusters that a row may look up
SHORTEST = 5  # ids in every list, as an empty one could not answer
COUNTED_ROWS = 1 << 18
ROUNDING = 1e-14  # more than the rounding of a quotient that is multiplied back


class Knapsack:
    """Greedily chooses the labels that clusters keep, at any budget, after one sort: O(P log P).

    Chen et al. 2019, section 3, "Optimization"; derived in benchmarks/papers/screen.md.
    """

    def __init__(self, cluster_P: Int32, hits_P: Int32, rows_C: Int64, waste_weight: float) -> None:
        self._pairs = len(hits_P)
        self._total_rows = int(rows_C.sum())
        weight_P = rows_C[cluster_P]  # n_t; the paper's capacity is N times B
        # Eq. 6: keeping (t, s) avoids m_ts misses, and wastes lambda on each of n_t - m_ts rows.
        value_P = (1 + waste_weight) * hits_P - waste_weight * weight_P
        paying = np.flatnonzero(value_P > 0)
        # value / weight = (1 + lambda) m_ts / n_t - lambda, which rises with m_ts / n_t.
        order = np.argsort(-(hits_P[paying] / weight_P[paying]), kind="stable")
        self._items = paying[order]
        self._weights = weight_P[self._items]

    @property
    def everything(self) -> float:
        return float(self._weights.sum()) / self._total_rows

    def select(self, budget: float | None) -> Bool:
        """Return whether each pair is kept; `budget` is candidates per row (None: all that pay).

        An item that does not fit never fits later. So each pass drops all such items, and takes the
        longest prefix of the others.
        """
        keep_P = np.zeros(self._pairs, bool)
        budget = self.everything if budget is None else min(budget, self.everything + 1)
        capacity = int(budget * self._total_rows * (1 + ROUNDING))
        items, weights = self._items, self._weights
        while True:
            fits = weights <= capacity
            items, weights = items[fits], weights[fits]
            if not len(items):
                return keep_P
            filled = np.cumsum(weights)
            taken = int(np.searchsorted(filled, capacity, side="right"))
            keep_P[items[:taken]] = True
            capacity -= int(filled[taken - 1])
            items, weights = items[taken:], weights[taken:]


class Pairs(NamedTuple):
    cluster: Int32  # [P]
    label: Int32  # [P]
    hits: Int32  # [P] rows of the cluster that have the label, m_ts
    rows: Int64  # [C] rows of each cluster, n_t


def count_pairs(
    inputs: FitInputs, labels_NK: np.ndarray, centroids_CD: Float32
) -> tuple[np.ndarray, Pairs]:
    contexts, vocab_size = inputs.train, inputs.vocab_size
    shared = Shared(centroids_CD, np.asarray, (centroids_CD,))
    calls = ((shared, block, labels_NK[part], vocab_size) for part, block in contexts.parts())
    cluster_N = np.empty(contexts.rows, np.uint16)
    rows_C = np.zeros(len(centroids_CD), np.int64)
    keys, hits, waiting = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    counted = inputs.workers.map(count_block, calls)
    for part, (cluster, block_keys, block_hits) in zip(contexts.spans(), counted, strict=True):
        cluster_N[part] = cluster
        rows_C += np.bincount(cluster, minlength=len(rows_C))
        keys.append(block_keys)
        hits.append(block_hits)
        waiting += len(cluster)
        if waiting >= COUNTED_ROWS:
            keys, hits, waiting = *_summed(keys, hits), 0
    [key_P], [hits_P] = _summed(keys, hits)
    cluster_P, label_P = (each.astype(np.int32) for each in np.divmod(key_P, vocab_size))
    return cluster_N, Pairs(cluster_P, label_P, hits_P.astype(np.int32), rows_C)


def _summed(keys: list[Int64], hits: list[Int64]) -> tuple[list[Int64], list[Int64]]:
    key_P, place = np.unique(np.concatenate(keys), return_inverse=True)
    return [key_P], [np.bincount(place, np.concatenate(hits)).astype(np.int64)]


def route_block(centroids_CD: Float32, block: Float32) -> np.ndarray:
    return np.asarray((block @ centroids_CD.T).argmax(axis=1), np.uint16)


def count_block(
    centroids_CD: Float32, block: Float32, labels_NK: np.ndarray, vocab_size: int
) -> tuple[np.ndarray, Int64, Int64]:
    """Return a block's clusters, and the keys (cluster * V + label) and hits of its pairs."""
    cluster_N = route_block(centroids_CD, block)
    keys_NK = cluster_N.astype(np.int64)[:, None] * vocab_size + labels_NK
    return cluster_N, *np.unique(keys_NK, return_counts=True)


class Partition:
    """The clusters that have contexts, and the counts of their contexts' first `depth` labels.

    With a guard, cosines are divided by a cluster's reach, so that `escalate` = `guarded` leaves
    the same share of each cluster's contexts to the fallback.
    """

    def __init__(self, inputs: FitInputs, centroids_CD: Float32, depth: int) -> None:
        self._inputs = inputs
        self.depth = min(depth, inputs.labels.shape[1])
        self.waste_weight = waste_weight = inputs.config.waste_weight
        guard = inputs.config.guard or 0.0
        cluster_N, pairs = count_pairs(inputs, inputs.labels[:, : self.depth], centroids_CD)
        used = np.flatnonzero(pairs.rows)
        self.centroids_CD = centroids_CD[used]
        self.pairs = pairs._replace(
            cluster=np.searchsorted(used, pairs.cluster).astype(np.int32), rows=pairs.rows[used]
        )
        self.knapsack = Knapsack(self.pairs.cluster, self.pairs.hits, self.pairs.rows, waste_weight)
        self._near_HR, self.heldout_cosines = nearest(inputs.heldout, self.centroids_CD)
        self.guarded = -1.0
        self._reaches_C: Float32 | None = None
        if guard > 0:
            cosines_N = cosines(inputs.train, self.centroids_CD, np.searchsorted(used, cluster_N))
            ends_C = farthest(cosines_N, np.searchsorted(used, cluster_N), guard)
            self.guarded = float(ends_C.min())
            self._reaches_C = (ends_C / self.guarded).astype(np.float32)
            self.heldout_cosines = self.heldout_cosines / self._reaches_C[self._near_HR[:, 0]]
        self._pairs: list[Int32] = []

    @property
    def clusters(self) -> int:
        return len(self.centroids_CD)

    def heldout_hits(self, keep_P: Bool, probes: int = 1) -> Bool:
        """Return whether each held-out label is in its row's lists, [H, K]."""
        while len(self._pairs) < probes:
            near_H = self._near_HR[:, len(self._pairs)]
            self._pairs.append(self._find(near_H, self._inputs.heldout_labels))
        hits = [(pair_HK >= 0) & keep_P[pair_HK] for pair_HK in self._pairs[:probes]]
        return np.asarray(np.logical_or.reduce(hits))

    def heldout_sizes(self, keep_P: Bool, probes: int = 1) -> Int64:
        """Return the ids in each held-out context's lists, counting duplicates, [H]."""
        return np.asarray(self.list_sizes(keep_P)[self._near_HR[:, :probes]].sum(axis=1))

    def heldout_loss(self, keep_P: Bool) -> float:
        hits_H = self.heldout_hits(keep_P)[:, : self.depth].sum(axis=1)
        size_H = self.heldout_sizes(keep_P)
        return float((self.depth - hits_H + self.waste_weight * (size_H - hits_H)).mean())

    def sizes(self, keep_P: Bool) -> Int64:
        return np.bincount(self.pairs.cluster[keep_P], minlength=self.clusters)

    def list_sizes(self, keep_P: Bool) -> Int64:
        return np.maximum(self.sizes(keep_P), min(self.depth, SHORTEST))

    def candidates(self, keep_P: Bool) -> float:
        rows_C = self.pairs.rows
        return float((self.list_sizes(keep_P) * rows_C).sum() / rows_C.sum())

    def table(self, keep_P: Bool) -> np.ndarray:
        """Return the paper's c, transposed: 1 if the cluster's list has the label, uint8 [V, C]."""
        table_VC = np.zeros((self._inputs.vocab_size, self.clusters), np.uint8)
        table_VC[self.pairs.label[keep_P], self.pairs.cluster[keep_P]] = 1
        return table_VC

    def arrays(self, keep_P: Bool) -> dict[str, np.ndarray]:
        cluster_L, label_L = self.pairs.cluster[keep_P], self.pairs.label[keep_P]
        order = np.lexsort((label_L, -self.pairs.hits[keep_P], cluster_L))
        kept_C, size_C = self.sizes(keep_P), self.list_sizes(keep_P)
        lists = np.split(label_L[order], np.cumsum(kept_C)[:-1])
        for cluster in np.flatnonzero(kept_C < size_C):
            lists[cluster] = self._padded(lists[cluster], size_C[cluster])
        offsets = np.cumsum([0, *size_C])
        reaches = {} if self._reaches_C is None else {"reaches": self._reaches_C}
        return {
            **reaches,
            "centroids": np.ascontiguousarray(self.centroids_CD),
            "offsets": offsets.astype(np.int32),
            "ids": np.concatenate(lists).astype(np.int32),
        }

    def _padded(self, ids: Int32, size: int) -> Int32:
        hits_V = np.bincount(self.pairs.label, self.pairs.hits, minlength=self._inputs.vocab_size)
        frequent = np.argsort(-hits_V, kind="stable")[:size]
        fresh = frequent[~np.isin(frequent, ids)]
        return np.concatenate([ids, fresh[: size - len(ids)]]).astype(np.int32)

    def _find(self, cluster_H: np.ndarray, label_HK: np.ndarray) -> Int32:
        V = self._inputs.vocab_size
        key_P = self.pairs.cluster.astype(np.int64) * V + self.pairs.label
        key_HK = cluster_H.astype(np.int64)[:, None] * V + label_HK
        place_HK = np.minimum(np.searchsorted(key_P, key_HK), len(key_P) - 1)
        return np.where(key_P[place_HK] == key_HK, place_HK, -1).astype(np.int32)


def nearest(contexts: Contexts, centroids_CD: Float32) -> tuple[Int64, Float64]:
    """Return each context's best clusters [H, R], and its cosine to the first [H]; 1 for zeros."""
    centroids_DC = np.ascontiguousarray(centroids_CD.T)
    lengths_C = np.linalg.norm(centroids_DC, axis=0)
    probes = min(MOST_PROBES, len(centroids_CD))
    near, cosines = [], []
    for block in contexts.blocks():
        scores_HC, every = block @ centroids_DC, np.arange(len(block))
        near_HR, best_H = np.empty((len(block), probes), np.int64), scores_HC.max(axis=1)
        for probe in range(probes):
            near_HR[:, probe] = scores_HC.argmax(axis=1)
            scores_HC[every, near_HR[:, probe]] = -np.inf
        lengths = np.linalg.norm(block, axis=1) * lengths_C[near_HR[:, 0]]
        cosine_H = np.ones(len(block), np.float32)
        np.divide(best_H, lengths, out=cosine_H, where=lengths > 0)
        near.append(near_HR)
        cosines.append(cosine_H.astype(np.float64))
    return np.concatenate(near), np.concatenate(cosines)


def cosines(contexts: Contexts, centroids_CD: Float32, cluster_N: np.ndarray) -> Float32:
    """Return each context's cosine to its cluster's centroid [N]; 1 for zeros."""
    unit_CD = centroids_CD / np.linalg.norm(centroids_CD, axis=1, keepdims=True)
    cosines_N = np.ones(contexts.rows, np.float32)
    for part, block in contexts.parts():
        lengths = np.linalg.norm(block, axis=1)
        dots = np.einsum("nd,nd->n", block, unit_CD[cluster_N[part]])
        np.divide(dots, lengths, out=cosines_N[part], where=lengths > 0)
    return cosines_N


def farthest(cosines_N: Float32, cluster_N: np.ndarray, share: float) -> Float64:
    """Return the cosine below which `share` of each cluster's contexts lie, [C]."""
    order_N = np.argsort(cluster_N, kind="stable")
    _, first = np.unique(cluster_N[order_N], return_index=True)
    parts = np.split(cosines_N[order_N], first[1:])
    return np.array([max(LEAST_REACH, np.quantile(part, share)) for part in parts])
