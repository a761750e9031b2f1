"""faiss IndexFlatIPPanorama over rows rotated by PCA: exact, it stops a row's product early.

Ramani et al. 2025, Panorama: Fast-Track Nearest Neighbors. After each level of dimensions the norms
of what is left bound the product (Cauchy-Schwarz), so the rotation must put the energy first.
"""

import faiss
import numpy as np

from benchmarks.race.methods import Method, Queries, augmented
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax

WIDTH = 64  # dimensions are padded to whole multiples, so that levels and vectors are even


class FaissPanorama(Method):
    """The bias is one more dimension; W's principal directions are those of its rows, uncentred."""

    name = "faiss IndexFlatIPPanorama"
    kind = "exact by bounds"

    def __init__(self, softmax: Softmax, levels: int, block: int = 128) -> None:
        self.built = {"levels": levels, "block": block}
        rows = augmented(softmax)
        values, vectors = np.linalg.eigh((rows.T @ rows).astype(np.float64))
        width = -(-rows.shape[1] // WIDTH) * WIDTH
        self._rotation = np.zeros((rows.shape[1], width), np.float32)
        self._rotation[:, : rows.shape[1]] = vectors[:, np.argsort(-values)]
        self._index = faiss.IndexFlatIPPanorama(width, levels, block)
        self._index.add(rows @ self._rotation)
        self._queries = Queries(softmax.dim)
        self.nbytes = 4 * len(rows) * (levels + 1) + self._rotation.nbytes

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        """The rotation of the query is part of the time."""
        return np.asarray(self._index.search(self._queries(hidden_states) @ self._rotation, k)[1])
