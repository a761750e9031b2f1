"""Hash tables over the rows of W, which follow the rows as they are trained.

`update` moves changed rows to other buckets, in constant time a table. Between updates look-ups
find classes by their old rows, which `keep` stores for losses that weigh by the probability of a
collision.

Shape letters: B rows of a batch, D hidden size, X = D + 2, V classes, L tables, C buckets a table,
M targets of a row, U rows that changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import local
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.index_builder.reduction import HEADROOM, lift
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.kernels.buckets import (
    fill_tables,
    look_up,
    look_up_batch,
    move_rows,
    pool_size,
)
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
LARGEST_POOLS = 2**31 - 1


class Buckets:
    """Bucket i holds pools[start : start + size], int32, of its extents[i] (kernels/buckets.py)."""

    extents: Int32
    pools: Int32

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
        """Return CSR (offsets, ids) of each row's classes, and their number before a limit [B].

        Targets (padded by -1) are excluded. At most `limit` classes stay: the ones in most buckets,
        or a uniform sample if `fair`.
        """
        seed, count = (np.uint64(random.key), np.uint64(random.step)), self.n_classes
        counts = self.scratch.zeros("counts", count, np.uint16)
        distinct = self.scratch.zeros("distinct", count + 1, np.int32)
        classes: tuple[Int64, Int32, Int64] = look_up(
            buckets_BL, self.extents, self.pools, targets_BM, limit, fair, *seed, counts, distinct
        )
        return classes

    def look_up_batch(self, buckets_BL: Int32, targets_BM: Int64, limit: int) -> Int32:
        """Return at most `limit` ids in most pairs of a row and a bucket, without targets."""
        sizes = {
            "votes": self.n_classes,
            "distinct": self.n_classes + 1,
            "visits": len(self.extents),
        }
        scratch = [self.scratch.zeros(name, size, np.int32) for name, size in sizes.items()]
        ids: Int32 = look_up_batch(
            buckets_BL, self.extents, self.pools, targets_BM, limit, *scratch
        )
        return ids


class HashTables(Buckets):
    """The buckets of every row: a RowIndex. mips: hash for h.w + b instead of the angle.

    keep: store the V rows as they were hashed, for `Hashing.chances`.
    """

    def __init__(
        self, n_classes: int, hashing: Hashing, *, mips: bool = False, keep: bool = False
    ) -> None:
        super().__init__(n_classes)
        self.hashing, self.mips, self.keep = hashing, mips, keep
        self.buckets, tables = 1 << hashing.bits, hashing.tables
        pool = pool_size(n_classes, self.buckets)
        if tables * pool > LARGEST_POOLS:
            allowed = f"at most {LARGEST_POOLS // pool} tables of so many classes and buckets"
            raise InvalidRequest("tables", tables, allowed)
        self.codes = np.zeros((n_classes, tables), np.int32)
        self.places = np.zeros((n_classes, tables), np.int32)
        self.pools = np.zeros(tables * pool, np.int32)
        self.extents = np.zeros((tables * self.buckets, 3), np.int32)
        self.ends = np.zeros(tables, np.int32)
        self.largest = 0.0  # M, where inner products are hashed for
        self.kept: np.ndarray | None = None

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        if self.mips:
            norms = (_norms(*_read(weight, bias, part)) for part in self._parts())
            self.largest = HEADROOM * max(float(norm.max()) for norm in norms) or 1.0
        for part in self._parts():
            vectors = self._lifted(*_read(weight, bias, part))
            self.codes[part] = self.hashing.codes(vectors)
            self._keep(part, vectors)
        self._fill()

    def update(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Hash rows [U] again and move them to other buckets; a row longer than M: rebuild."""
        rows_U = rows.cpu().numpy()
        for start in range(0, len(rows_U), AT_ONCE):
            part = rows_U[start : start + AT_ONCE]
            weight_UD, bias_U = _read(weight, bias, torch.from_numpy(part))
            if self.mips and _norms(weight_UD, bias_U).max() > self.largest:
                self.rebuild(weight, bias)
                return
            vectors = self._lifted(weight_UD, bias_U)
            codes = self.hashing.codes(vectors)
            layout = (self.places, self.pools, self.extents, self.ends)
            move_rows(part, codes, self.codes, *layout)
            self._keep(part, vectors)

    def of_contexts(self, hidden_BD: Tensor) -> tuple[Int32, Float32]:
        """Buckets int32 [B, L] of hidden rows, and the vectors [B, X] that were hashed."""
        hidden = hidden_BD.detach().to("cpu", torch.float32).numpy()
        vectors = np.empty((len(hidden), hidden.shape[1] + 2), np.float32)
        vectors[:, :-2], vectors[:, -2], vectors[:, -1] = hidden, 1, 0
        return self._numbered(self.hashing.codes(vectors)), vectors

    def of_classes(self, ids_B: Int64) -> Int32:
        return self._numbered(self.codes[ids_B])

    def state_dict(self) -> dict[str, Any]:
        # The order inside buckets does not matter.
        state: dict[str, Any] = {
            "codes": torch.from_numpy(self.codes.astype(np.uint16).view(np.int16)),
            "largest": self.largest,
            "hashing": self.hashing.state_dict(),
        }
        if self.kept is not None:
            # Every version of torch can save int16, not uint16.
            signed = self.kept.view(np.int16) if self.kept.dtype == np.uint16 else self.kept
            state["kept"] = torch.from_numpy(signed.copy())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        codes = state["codes"]
        if codes.shape != self.codes.shape:
            got, allowed = f"codes of shape {tuple(codes.shape)}", f"{self.codes.shape}"
            raise InvalidRequest("state_dict", got, allowed)
        self.hashing.load_state_dict(state["hashing"])
        self.codes[:] = codes.cpu().numpy().view(np.uint16)
        self.largest = state["largest"]
        if self.keep:
            if "kept" not in state:
                raise InvalidRequest("state_dict", "tables without their rows", "those with them")
            array = state["kept"].cpu().numpy()
            self.kept = array.view(np.uint16).copy() if array.dtype == np.int16 else array.copy()
        self._fill()

    def _fill(self) -> None:
        fill_tables(self.codes, self.places, self.pools, self.extents, self.ends)

    def _parts(self) -> Iterator[slice]:
        for start in range(0, self.n_classes, AT_ONCE):
            yield slice(start, min(start + AT_ONCE, self.n_classes))

    def _numbered(self, codes_BL: Int32) -> Int32:
        return codes_BL + np.arange(self.hashing.tables, dtype=np.int32) * self.buckets

    def _lifted(self, weight_UD: Float32, bias_U: Float32) -> Float32:
        norms = _norms(weight_UD, bias_U)
        norms = np.where(norms > 0, norms, 1)
        largest = np.full_like(norms, self.largest) if self.mips else norms
        vectors = np.empty((len(weight_UD), weight_UD.shape[1] + 2), np.float32)
        lift(weight_UD, bias_U, norms, largest, vectors)
        return vectors

    def _keep(self, rows: slice | Int64, vectors_UX: Float32) -> None:
        if not self.keep:
            return
        vectors = self.hashing.kept(vectors_UX)
        if self.kept is None:
            self.kept = np.zeros((self.n_classes, vectors.shape[1]), vectors.dtype)
        self.kept[rows] = vectors


def _read(weight: Tensor, bias: Tensor | None, rows: Tensor | slice) -> tuple[Float32, Float32]:
    weight_UD = weight.detach()[rows].to("cpu", torch.float32).numpy()
    if bias is None:
        return weight_UD, np.zeros(len(weight_UD), np.float32)
    return weight_UD, bias.detach()[rows].view(-1).to("cpu", torch.float32).numpy()


def _norms(weight_UD: Float32, bias_U: Float32) -> np.ndarray:
    squares = np.einsum("ud,ud->u", weight_UD, weight_UD, dtype=np.float64)
    norms: np.ndarray = np.sqrt(squares + bias_U.astype(np.float64) ** 2)
    return norms
