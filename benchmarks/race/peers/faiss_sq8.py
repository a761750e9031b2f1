"""faiss IndexScalarQuantizer of 8 bits a coordinate, and IndexRefineFlat over what it finds.

Codes are between each dimension's least and largest value; products are of decoded rows with the
float32 query. `k_factor` times k rows get their float32 products. Rows are padded to whole vectors:
of other widths faiss decodes one number at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np

from benchmarks.race.methods import Knobs, Peer, Queries, augmented
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax

FACTORS = (1, 2, 4, 8)
VECTOR = 16


class FaissSq8(Peer):
    """The bias is one more dimension."""

    name = "faiss SQ8, refined"

    def __init__(self, softmax: Softmax) -> None:
        dim = -(-(softmax.dim + 1) // VECTOR) * VECTOR
        rows = np.pad(augmented(softmax), ((0, 0), (0, dim - softmax.dim - 1)))
        self._codes = faiss.IndexScalarQuantizer(
            dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        self._index = faiss.IndexRefineFlat(self._codes)
        self._index.train(rows)
        self._index.add(rows)
        self._queries = Queries(softmax.dim, dim)
        self.nbytes = rows.size + 8 * dim

    @property
    def settings(self) -> Sequence[Knobs]:
        return tuple({"k_factor": factor} for factor in FACTORS)

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        super().set_knobs(threads, knobs)
        self._index.k_factor = knobs["k_factor"]

    def topk(self, hidden: Float32, k: int) -> np.ndarray:
        return np.asarray(self._index.search(self._queries(hidden), k)[1])
