"""Hash tables over the rows of W, which follow the rows as they are trained.

Shape letters: X = D + 2, U rows that changed.
"""

from __future__ import annotations

from threading import local
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.kernels.retrieval.hash_tables import bucket_tables
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.kernels.buckets import look_up, look_up_batch
from logitsieve.training.structures.hashing import Hashing


class Scratch:
    """Arrays of zeros for kernels, by name and thread; never saved."""

    def __init__(self) -> None:
        self._of_thread = local()

    def zeros(self, name: str, size: int, dtype: type[np.generic]) -> np.ndarray:
        arrays: dict[str, Any] = self._of_thread.__dict__
        if name not in arrays or arrays[name].size != size:
            arrays[name] = np.zeros(size, dtype)
        array: np.ndarray = arrays[name]
        return array

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()


AT_ONCE = 1 << 11  # rows that are lifted and hashed at once: few enough to stay in the caches
LARGEST_SIZE = 2**31 - 1  # ids of all tables


class Buckets:
    """Bucket i holds ids[offsets[i] : offsets[i + 1]]."""

    offsets: Int32
    ids: Int32

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes
        self.scratch = Scratch()

    def look_up(
        self,
        buckets_BL: Int32,
        targets_BM: Int64,
        limit: int,
        random: StepRng,
        *,
        fair: bool = False,
    ) -> tuple[Int64, Int32, Int64]:
        """Return CSR of each row's classes but its targets, and their numbers before a limit [B].

        Of more than `limit` the ones in most buckets stay, or a uniform sample if `fair`.
        """
        seed, count = (np.uint64(random.key), np.uint64(random.step)), self.n_classes
        counts = self.scratch.zeros("counts", count, np.uint16)
        distinct = self.scratch.zeros("distinct", count + 1, np.int32)
        classes: tuple[Int64, Int32, Int64] = look_up(
            buckets_BL, self.offsets, self.ids, targets_BM, limit, fair, *seed, counts, distinct
        )
        return classes

    def look_up_batch(self, buckets_BL: Int32, targets_BM: Int64, limit: int) -> Int32:
        """Return at most `limit` ids in most pairs of a row and a bucket, without targets."""
        sizes = {
            "votes": self.n_classes,
            "distinct": self.n_classes + 1,
            "visits": len(self.offsets) - 1,
        }
        scratch = [self.scratch.zeros(name, size, np.int32) for name, size in sizes.items()]
        ids: Int32 = look_up_batch(buckets_BL, self.offsets, self.ids, targets_BM, limit, *scratch)
        return ids


class HashTables(Buckets):
    """The buckets of every row: a RowIndex.

    keep: store the V rows as they were hashed, for `Hashing.chances` between updates.
    """

    def __init__(self, n_classes: int, hashing: Hashing, *, keep: bool = False) -> None:
        super().__init__(n_classes)
        self.hashing, self.keep = hashing, keep
        if hashing.tables * n_classes > LARGEST_SIZE:
            allowed = f"at most {LARGEST_SIZE // n_classes} tables of so many classes"
            raise InvalidRequest("tables", hashing.tables, allowed)
        self.codes: np.ndarray = np.zeros((n_classes, hashing.tables), np.uint16)
        self.kept: np.ndarray | None = None

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        self.update(torch.arange(self.n_classes), weight, bias)

    def update(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Hash rows [U] again, and put every row into the buckets of its codes."""
        for part in torch.split(rows.cpu(), AT_ONCE):
            vectors = _lifted(*_read(weight, bias, part))
            self.codes[part.numpy()] = self.hashing.codes(vectors)
            if self.keep:
                self._store(part.numpy(), self.hashing.kept(vectors))
        self.offsets, self.ids = bucket_tables(self.codes, self.hashing.bits)

    def of_contexts(self, hidden_BD: Tensor) -> tuple[Int32, Float32]:
        """Buckets int32 [B, L] of hidden rows, and the vectors [B, X] that were hashed."""
        hidden = hidden_BD.detach().to("cpu", torch.float32).numpy()
        vectors = np.empty((len(hidden), hidden.shape[1] + 2), np.float32)
        vectors[:, :-2], vectors[:, -2], vectors[:, -1] = hidden, 1, 0
        return self._numbered(self.hashing.codes(vectors)), vectors

    def of_classes(self, ids_B: Int64) -> Int32:
        return self._numbered(self.codes[ids_B])

    def _numbered(self, codes_BL: np.ndarray) -> Int32:
        firsts = np.arange(self.hashing.tables, dtype=np.int32) << self.hashing.bits
        return np.asarray(codes_BL + firsts, np.int32)

    def _store(self, rows_U: Int64, vectors: np.ndarray) -> None:
        if self.kept is None:
            self.kept = np.zeros((self.n_classes, vectors.shape[1]), vectors.dtype)
        self.kept[rows_U] = vectors


def _read(weight: Tensor, bias: Tensor | None, rows: Tensor) -> tuple[Float32, Float32]:
    weight_UD = weight.detach()[rows].to("cpu", torch.float32).numpy()
    if bias is None:
        return weight_UD, np.zeros(len(weight_UD), np.float32)
    return weight_UD, bias.detach()[rows].view(-1).to("cpu", torch.float32).numpy()


def _lifted(weight_UD: Float32, bias_U: Float32) -> Float32:
    """Return [w; b; 0] of length 1, or 0."""
    squares_U = np.einsum("ud,ud->u", weight_UD, weight_UD, dtype=np.float64)
    norms_U = np.sqrt(squares_U + bias_U.astype(np.float64) ** 2)
    scale_U = 1 / np.where(norms_U > 0, norms_U, 1)
    vectors = np.zeros((len(weight_UD), weight_UD.shape[1] + 2), np.float32)
    vectors[:, :-2], vectors[:, -2] = weight_UD * scale_U[:, None], bias_U * scale_U
    return vectors
