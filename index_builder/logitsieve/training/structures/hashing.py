"""Hash families over the rows of W: SimHash with dense or structured hyperplanes, and DWTA.

Rows are hashed as [w; b; sqrt(M^2 - |[w; b]|^2)] / M (index_builder/reduction.py), contexts as
[h; 1; 0]. M is the row's own norm, unless the tables are for inner products.

Shape letters: N vectors, K hashes a table, E pairs of a query and a row.
"""

from abc import ABC, abstractmethod
from math import ceil, log2

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Float64, Int32, Int64
from logitsieve.index_builder.reduction import draw_planes, hash_vectors
from logitsieve.kernels.retrieval.hash_tables import LARGEST_BITS
from logitsieve.training.kernels.hadamard import padded, random_signs, structured_products
from logitsieve.training.kernels.hash_codes import (
    codes_of_products,
    draw_windows,
    dwta_agreements,
    dwta_codes,
    rank_rows,
    simhash_agreements,
    window_chances,
)

LARGEST_TABLES = 4096


class Hashing(ABC):
    tables: int
    hashes: int  # K, which all agree for vectors in the same bucket
    bits: int
    drawn: np.ndarray

    @abstractmethod
    def codes(self, vectors_NX: Float32) -> Int32:
        """Return the buckets int32 [N, L] of lifted vectors."""

    @abstractmethod
    def kept(self, vectors_NX: Float32) -> np.ndarray:
        """Return vectors in the form [N, ...] that `agreements` takes."""

    @abstractmethod
    def agreements(
        self, queries: np.ndarray, rows: np.ndarray, offsets: Int64, ids: Int32
    ) -> Float64:
        """Return the probability [E] that one hash agrees for queries and CSR rows, from `kept`."""

    def chances(self, queries: np.ndarray, rows: np.ndarray, offsets: Int64, ids: Int32) -> Float64:
        common = self.agreements(queries, rows, offsets, ids) ** self.hashes
        with np.errstate(divide="ignore"):
            chances: Float64 = -np.expm1(self.tables * np.log1p(-common))
        return chances

    def state_dict(self) -> dict[str, Tensor]:
        return {"drawn": torch.from_numpy(self.drawn)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        drawn = state["drawn"].cpu().numpy()
        if drawn.shape != self.drawn.shape:
            got, allowed = f"hashes of shape {drawn.shape}", f"{self.drawn.shape}"
            raise InvalidRequest("state_dict", got, allowed)
        self.drawn = np.ascontiguousarray(drawn)


class SimHash(Hashing):
    """Sides of random hyperplanes (Charikar 2002), which agree with probability 1 - angle / pi."""

    def __init__(self, dim: int, *, tables: int, bits: int, seed: int) -> None:
        whole("tables", tables, 1, LARGEST_TABLES)
        whole("bits", bits, 1, LARGEST_BITS)
        self.tables, self.hashes, self.bits = tables, bits, bits
        self.drawn = self._draw(dim, seed)

    def _draw(self, dim: int, seed: int) -> np.ndarray:
        return draw_planes(self.tables, self.bits, dim, seed)

    def codes(self, vectors_NX: Float32) -> Int32:
        return hash_vectors(vectors_NX, self.drawn, torch.get_num_threads())

    def kept(self, vectors_NX: Float32) -> np.ndarray:
        norms = np.linalg.norm(vectors_NX, axis=1, keepdims=True)
        unit: np.ndarray = vectors_NX / np.where(norms > 0, norms, 1)
        unit[norms[:, 0] == 0, -1] = 1
        return unit

    def agreements(
        self, queries: np.ndarray, rows: np.ndarray, offsets: Int64, ids: Int32
    ) -> Float64:
        out: Float64 = simhash_agreements(queries, rows, offsets, ids)
        return out


class StructuredSimHash(SimHash):
    """SimHash with hyperplanes from Hadamard matrices: O(X log X) for X products.

    They are orthogonal, not independent. So `agreements` are those of SimHash, but `chances` are
    approximate.
    """

    def _draw(self, dim: int, seed: int) -> np.ndarray:
        blocks = ceil(self.tables * self.bits / padded(dim + 2))
        return random_signs(blocks, dim + 2, np.random.default_rng([seed, self.bits]))

    def codes(self, vectors_NX: Float32) -> Int32:
        blocks, _, size = self.drawn.shape
        products = np.empty((len(vectors_NX), blocks * size), np.float32)
        structured_products(vectors_NX, self.drawn, products)
        codes = np.empty((len(vectors_NX), self.tables), np.int32)
        codes_of_products(products, self.bits, codes)
        return codes


class DWTA(Hashing):
    """The largest coordinates in random windows. `chances` are exact for vectors without zeros."""

    def __init__(self, dim: int, *, tables: int, hashes: int, window: int, seed: int) -> None:
        whole("tables", tables, 1, LARGEST_TABLES)
        if window < 2 or window & (window - 1) or window > dim:
            raise InvalidRequest("window", window, f"2, 4, 8, ... up to {dim}, the hidden size")
        whole("hashes", hashes, 1, LARGEST_BITS // int(log2(window)))
        self.tables, self.hashes, self.bits = tables, hashes, hashes * int(log2(window))
        self.drawn = draw_windows(tables, hashes, window, dim, seed)
        self.dim = dim
        self._chances = window_chances(dim, window)

    def codes(self, vectors_NX: Float32) -> Int32:
        codes = np.empty((len(vectors_NX), self.tables), np.int32)
        dwta_codes(np.ascontiguousarray(vectors_NX[:, : self.dim]), self.drawn, codes)
        return codes

    def kept(self, vectors_NX: Float32) -> np.ndarray:
        return rank_rows(vectors_NX[:, : self.dim])

    def agreements(
        self, queries: np.ndarray, rows: np.ndarray, offsets: Int64, ids: Int32
    ) -> Float64:
        out: Float64 = dwta_agreements(queries, rows, self._chances, offsets, ids)
        return out
