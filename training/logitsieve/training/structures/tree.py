"""A kernel tree over the rows of W: rebuilt and updated with the weights, and drawn from.

Blanc, Rendle 2018, Adaptive Sampled Softmax with Kernel Based Sampling. kernels/tree_sums.py has
the layout.

Shape letters: V classes, D their size, F features, L leaves, n classes a leaf, B contexts, M draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.training.autograd.classes import LogitForm
from logitsieve.training.kernels.tree_sums import add_to_paths, descend
from logitsieve.training.structures.features import Features

FEATURES_AT_ONCE = 1 << 22  # features held at a time while rows are added
# Updates of the float32 sums before a rebuild: the error is then about 1e-5 of a sum.
REBUILD_AFTER = 10_000


@dataclass(frozen=True)
class TreeQuery:
    """phi [F] of contexts, a weighted sum; every class has at least the mass `floor`."""

    phi: Float32
    floor: float


class KernelTree:
    """Sums of phi over the classes below each branch: a RowIndex.

    Stores each added row, to subtract it again; normalised rows in half precision, and
    phi is of the rounded row.
    """

    def __init__(
        self, features: Features, in_features: int, n_classes: int, form: LogitForm, leaf: int
    ) -> None:
        self.features, self.form, self.classes = features, form, n_classes
        self.leaves = 1 << max(0, (-(-n_classes // leaf) - 1).bit_length())
        self.per_leaf = -(-n_classes // self.leaves)
        self.sums: Float32 = np.zeros((self.leaves, features.size), np.float32)
        dtype = torch.float32 if form.scale is None else torch.float16
        self.rows = torch.zeros(n_classes, in_features, dtype=dtype)
        self.updates = 0

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        self.sums[:] = 0
        self.updates = 0
        for first, last in self._parts(self.classes):
            self.rows[first:last] = self._rounded(weight[first:last])
            phi = self._phi_of_stored(slice(first, last))
            add_to_paths(self.sums, np.arange(first, last) // self.per_leaf, phi)

    def update(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Update the sums above rows [N], ascending, each once: O(N F log L)."""
        self.updates += 1
        if self.updates >= REBUILD_AFTER:
            self.rebuild(weight, bias)
            return
        for first, last in self._parts(len(rows)):
            moved = rows[first:last]
            host_rows = moved.cpu()
            before = self._phi_of_stored(host_rows)
            self.rows[host_rows] = self._rounded(weight.index_select(0, moved))
            leaves = host_rows.numpy() // self.per_leaf
            add_to_paths(self.sums, leaves, self._phi_of_stored(host_rows) - before)

    def mixture(self, vectors: Tensor) -> TreeQuery:
        """Return a query that draws from the mean of the distributions of contexts [B, D]."""
        phi_BF = self.features(vectors.detach().cpu().float().contiguous().numpy())
        floor = self.features.floor
        masses_B = (phi_BF @ self.sums[0]).astype(np.float64)
        shares_B = 1 / np.maximum(masses_B, floor * self.classes)
        shares_B /= shares_B.max()  # only their ratios count, and 1 / mass may exceed float32
        return TreeQuery(shares_B.astype(np.float32) @ phi_BF, float((floor * shares_B).sum()))

    def draw(self, query: TreeQuery, uniforms: Float64) -> tuple[Int64, Float64]:
        """Draw leaves [M], ascending, by uniforms [M]; return them and their log q [M]."""
        leaves, log_q = np.empty(uniforms.size, np.int64), np.empty(uniforms.size)
        descend(
            self.sums, self.classes, self.per_leaf, query.phi, query.floor, np.sort(uniforms),
            leaves, log_q,
        )  # fmt: skip
        return leaves, log_q

    def members(self, leaves: Tensor) -> Tensor:
        """Return class ids [L', n] of leaves [L'], padded by V."""
        ids = leaves[:, None] * self.per_leaf + torch.arange(self.per_leaf, device=leaves.device)
        return ids.clamp_(max=self.classes)

    def state_dict(self) -> dict[str, Any]:
        drawn = {name: torch.from_numpy(values) for name, values in self.features.drawn.items()}
        sums = torch.from_numpy(self.sums)
        return {"sums": sums, "rows": self.rows, "features": drawn, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (got := _shapes(state)) != (allowed := _shapes(self.state_dict())):
            raise InvalidRequest("state_dict", f"a tree of {got}", f"{allowed}")
        self.sums[:] = state["sums"].cpu().numpy()
        self.rows.copy_(state["rows"])
        drawn = state["features"].items()
        self.features.drawn = {name: values.cpu().numpy().copy() for name, values in drawn}
        self.updates = state["updates"]

    def _parts(self, count: int) -> list[tuple[int, int]]:
        step = max(FEATURES_AT_ONCE // self.features.size, 1)
        return [(first, min(first + step, count)) for first in range(0, count, step)]

    def _rounded(self, weight: Tensor) -> Tensor:
        rows = weight.detach().cpu().float()
        if self.form.scale is not None:
            rows = functional.normalize(rows, dim=-1)
        return rows.to(self.rows.dtype)

    def _phi_of_stored(self, rows: Tensor | slice) -> Float32:
        return self.features(self.rows[rows].float().numpy())


def _shapes(state: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    named = {"sums": state["sums"], "rows": state["rows"], **state["features"]}
    return {name: tuple(each.shape) for name, each in named.items()}
