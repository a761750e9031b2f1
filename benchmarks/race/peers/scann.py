"""ScaNN: partitions, products quantised anisotropically, and a reordering with the true products.

Guo et al. 2020, Accelerating Large-Scale Inference with Anisotropic Vector Quantization; set as its
documentation advises: no tree below 100,000 rows, sqrt(V) leaves above, blocks of two dimensions,
threshold 0.2. With a tree as well where the advice is none, for whoever wants less of W read.
"""

from itertools import product

import numpy as np

from benchmarks.race.methods import Knobs, Method, Queries, augmented
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax

REORDER = (10, 30, 100, 300, 1000)
SEARCHED = (0.02, 0.05, 0.1, 0.2, 0.4)  # of the leaves


class Scann(Method):
    """`tree` 1 partitions the rows, 0 scores all of them."""

    name = "ScaNN"
    kind = "approximate search"

    def __init__(self, softmax: Softmax, tree: bool) -> None:
        from scann.scann_ops.py import scann_ops_pybind

        rows = augmented(softmax)
        leaves = int(len(rows) ** 0.5) if tree else 0
        self.built = {"leaves": leaves}
        self.settings = [{"reorder": reorder} for reorder in REORDER]
        if tree:
            searched = (max(1, round(share * leaves)) for share in SEARCHED)
            points = product(searched, REORDER[1:4])
            self.settings = [{"leaves": count, "reorder": reorder} for count, reorder in points]
        builder = scann_ops_pybind.builder(rows, 10, "dot_product")
        builder = builder.set_n_training_threads(1)
        if tree:
            builder = builder.tree(
                num_leaves=leaves, num_leaves_to_search=leaves, training_sample_size=len(rows)
            )
        builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2)
        self._searcher = builder.reorder(100).build()
        self._searcher.set_num_threads(1)
        self._queries = Queries(softmax.dim)
        self._reorder, self._searched = 100, leaves
        self.nbytes = len(rows) * (-(-rows.shape[1] // 4)) + leaves * rows.shape[1] * 4

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        super().set_knobs(threads, knobs)
        self._searcher.set_num_threads(threads)
        self._reorder = int(knobs["reorder"])
        self._searched = int(knobs.get("leaves", -1))

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        """One call for one row, another for a batch, a third for threads, as ScaNN has them."""
        queries = self._queries(hidden_states)
        point = (k, max(k, self._reorder), self._searched)
        if len(queries) == 1:
            ids, _ = self._searcher.search(queries[0], *point)
            return _filled(np.asarray(ids, np.int64)[None], k)
        if self.threads > 1:
            share = -(-len(queries) // self.threads)
            ids, _ = self._searcher.search_batched_parallel(queries, *point, batch_size=share)
        else:
            ids, _ = self._searcher.search_batched(queries, *point)
        return _filled(np.asarray(ids).astype(np.int64), k)


def _filled(ids: np.ndarray, k: int) -> np.ndarray:
    """-1 in the places that were not found."""
    if ids.shape[1] == k:
        return ids
    return np.pad(ids, ((0, 0), (0, k - ids.shape[1])), constant_values=-1)
