"""hnswlib: a navigable small world graph over the rows of W.

Malkov and Yashunin 2016, Efficient and robust approximate nearest neighbor search using HNSW
graphs. `space` "ip" searches by inner product as it is; "l2" after the reduction of Bachrach et al.
2014 (one more dimension makes all rows equally long), which Zhang et al. 2018 (FGD) use.
"""

import numpy as np

from benchmarks.race.methods import Knobs, Method, Queries, augmented
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax
from logitsieve.index_builder.reduction import augmented as equally_long

EFS = (5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560)


class Hnswlib(Method):
    """M edges a node (2 M on the ground level)."""

    kind = "approximate search"
    settings = tuple({"ef": ef} for ef in EFS)

    def __init__(
        self, softmax: Softmax, space: str, edges: int = 32, construction: int = 300
    ) -> None:
        import hnswlib

        self.name = f"hnswlib {space}"
        self.built = {"M": edges, "ef_construction": construction}
        rows = equally_long(softmax) if space == "l2" else augmented(softmax)
        self._queries = Queries(softmax.dim, rows.shape[1])
        self._index = hnswlib.Index(space=space, dim=rows.shape[1])
        self._index.init_index(
            max_elements=len(rows), M=edges, ef_construction=construction, random_seed=1
        )
        self._index.add_items(rows, num_threads=1)
        self.nbytes = int(self._index.index_file_size()) - softmax.weight.nbytes

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        super().set_knobs(threads, knobs)
        self._index.set_ef(int(knobs["ef"]))

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        labels, _ = self._index.knn_query(
            self._queries(hidden_states), k=k, num_threads=self.threads
        )
        return np.asarray(labels).astype(np.int64)
