"""Hash tables over the rows of W, which are updated as the rows are trained.

Between updates, classes are found by their old rows.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.index_builder.reduction import HEADROOM, lift
from logitsieve.training.autograd.batch import StepRng
from logitsieve.training.kernels.buckets import fill_tables, look_up
from logitsieve.training.structures.hashing import Hashing

AT_ONCE = 1 << 11
LARGEST_IDS = 2**31 - 1  # in all tables, as offsets are int32


class Buckets:
    offsets: Int32
    ids: Int32

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes

    def look_up(
        self,
        buckets_BL: Int32,
        targets_BM: Int64,
        limit: int,
        random: StepRng,
        *,
        fair: bool = False,
        votes_BL: Int32 | None = None,
    ) -> tuple[Int64, Int32, Int64]:
        """Return what `kernels.buckets.look_up` does; by default, each bucket has one vote."""
        votes_BL = np.ones_like(buckets_BL) if votes_BL is None else votes_BL
        found: tuple[Int64, Int32, Int64] = look_up(
            buckets_BL, votes_BL, self.offsets, self.ids, targets_BM, limit, fair,
            np.uint64(random.key), np.uint64(random.step), self.n_classes,
        )  # fmt: skip
        return found

    def look_up_batch(self, buckets_BL: Int32, targets_BM: Int64, limit: int) -> Int32:
        counts = np.bincount(buckets_BL.ravel())
        buckets = np.flatnonzero(counts)
        votes = counts[buckets].astype(np.int32)[None]
        one_row = buckets.astype(np.int32)[None], targets_BM.reshape(1, -1)
        return self.look_up(*one_row, limit, StepRng(0, 0), votes_BL=votes)[1]


class HashTables(Buckets):
    """A RowIndex by buckets. mips: hash for h.w + b instead of the angle.

    keep: keep the rows as they were hashed, for `Hashing.chances`.
    """

    def __init__(
        self, n_classes: int, hashing: Hashing, *, mips: bool = False, keep: bool = False
    ) -> None:
        super().__init__(n_classes)
        self.hashing, self.mips, self.keep = hashing, mips, keep
        tables = hashing.tables
        if tables * n_classes > LARGEST_IDS:
            allowed = f"at most {LARGEST_IDS // n_classes} tables of so many classes"
            raise InvalidRequest("tables", tables, allowed)
        self.codes = np.zeros((n_classes, tables), np.int32)
        self.offsets = np.zeros((tables << hashing.bits) + 1, np.int32)
        self.ids = np.zeros(tables * n_classes, np.int32)
        self.largest = 0.0
        self.kept: np.ndarray | None = None

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        rows = torch.arange(self.n_classes)
        if self.mips:
            self.largest = HEADROOM * _longest(rows, weight, bias) or 1.0
        self._hash(rows, weight, bias)

    def update(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        if self.mips and _longest(rows, weight, bias) > self.largest:
            self.rebuild(weight, bias)
        else:
            self._hash(rows, weight, bias)

    def _hash(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        for part in torch.split(rows.cpu(), AT_ONCE):
            vectors, rows_U = self._lifted(*_read(part, weight, bias)), part.numpy()
            self.codes[rows_U] = self.hashing.codes(vectors)
            if self.keep:
                kept = self.hashing.kept(vectors)
                if self.kept is None:
                    self.kept = np.zeros((self.n_classes, kept.shape[1]), kept.dtype)
                self.kept[rows_U] = kept
        fill_tables(self.codes, self.offsets, self.ids)

    def of_contexts(self, hidden_BD: Tensor) -> tuple[Int32, Float32]:
        hidden_states = hidden_BD.detach().to("cpu", torch.float32).numpy()
        vectors = np.empty((len(hidden_states), hidden_states.shape[1] + 2), np.float32)
        vectors[:, :-2], vectors[:, -2], vectors[:, -1] = hidden_states, 1, 0
        return self._numbered(self.hashing.codes(vectors)), vectors

    def of_classes(self, ids_B: Int64) -> Int32:
        return self._numbered(self.codes[ids_B])

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "codes": torch.from_numpy(self.codes.astype(np.uint16).view(np.int16)),
            "largest": self.largest,
            "hashing": self.hashing.state_dict(),
        }
        if self.kept is not None:
            # Some versions of torch cannot save uint16.
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
        fill_tables(self.codes, self.offsets, self.ids)

    def _numbered(self, codes_BL: Int32) -> Int32:
        firsts = np.arange(self.hashing.tables, dtype=np.int32) << self.hashing.bits
        return codes_BL + firsts

    def _lifted(self, weight_UD: Float32, bias_U: Float32) -> Float32:
        norms = _norms(weight_UD, bias_U)
        norms = np.where(norms > 0, norms, 1)
        largest = np.full_like(norms, self.largest) if self.mips else norms
        vectors = np.empty((len(weight_UD), weight_UD.shape[1] + 2), np.float32)
        lift(weight_UD, bias_U, norms, largest, vectors)
        return vectors


def _read(rows: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Float32, Float32]:
    weight_UD = weight.detach()[rows].to("cpu", torch.float32).numpy()
    if bias is None:
        return weight_UD, np.zeros(len(weight_UD), np.float32)
    return weight_UD, bias.detach()[rows].view(-1).to("cpu", torch.float32).numpy()


def _norms(weight_UD: Float32, bias_U: Float32) -> np.ndarray:
    squares = np.einsum("ud,ud->u", weight_UD, weight_UD, dtype=np.float64)
    norms: np.ndarray = np.sqrt(squares + bias_U.astype(np.float64) ** 2)
    return norms


def _longest(rows: Tensor, weight: Tensor, bias: Tensor | None) -> float:
    parts = torch.split(rows.cpu(), AT_ONCE)
    return max((float(_norms(*_read(part, weight, bias)).max()) for part in parts), default=0.0)
