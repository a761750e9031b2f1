"""faiss's codes of all rows, and the float32 products of the best `k_factor` times k by them.

- SQ8: 8 bits a coordinate between each dimension's least and largest value.
- RaBitQ: 1 or 4 bits a coordinate after a random rotation, scanned 32 rows at a time (Gao and Long
  2024, arXiv:2405.12497).
- PQ fast scan: 4 bits for each two coordinates, by table look-up in registers (André et al. 2015).

Rows are padded to whole vectors, and the bias, where there is one, is one more dimension.
"""

from functools import lru_cache
from typing import Any

import faiss
import numpy as np

from benchmarks.race.methods import Knobs, Method, Queries, augmented
from benchmarks.race.points import RESCORED
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax

VECTOR = 16
CODES = {  # faiss's name of an index of so many dimensions, and the factors to try
    "SQ8": ("SQ8", (1, 2, 4, 8)),
    "RaBitQ 1 bit": ("RR{dim},RaBitQfs", (2, 8, 32, 128)),
    "RaBitQ 4 bits": ("RR{dim},RaBitQfs4", (1, 2, 8, 32)),
    "PQ fast scan": ("PQ{half}x4fs", (2, 8, 32, 128)),
}


class FaissRefined(Method):
    """One of `CODES`; the float32 rows are one array for all of them."""

    kind = RESCORED

    def __init__(self, softmax: Softmax, codes: str) -> None:
        self.name = f"faiss {codes}, refined"
        factory, factors = CODES[codes]
        self.settings = [{"k_factor": factor} for factor in factors]
        rows = flat(softmax)
        dim = rows.d
        self._codes = faiss.index_factory(
            dim, factory.format(dim=dim, half=dim // 2), faiss.METRIC_INNER_PRODUCT
        )
        array = faiss.rev_swig_ptr(rows.get_xb(), rows.ntotal * dim).reshape(-1, dim)
        self._codes.train(array)
        self._codes.add(array)
        self._rows = rows  # faiss keeps no reference
        self._index = faiss.IndexRefine(self._codes, rows)
        self._queries = Queries(softmax.dim, dim) if dim > softmax.dim else None
        self.nbytes = len(faiss.serialize_index(self._codes))

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        super().set_knobs(threads, knobs)
        self._index.k_factor = knobs["k_factor"]

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        queries = (
            self._queries(hidden_states) if self._queries else np.ascontiguousarray(hidden_states)
        )
        return np.asarray(self._index.search(queries, k)[1])


@lru_cache(maxsize=1)
def flat(softmax: Softmax) -> Any:
    """The rows in float32, as faiss searches them without codes."""
    rows = augmented(softmax) if softmax.bias.any() else softmax.weight
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % VECTOR)))
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    return index
