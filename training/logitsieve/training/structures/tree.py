"""The kernel tree as a Structure: rebuilt and updated with the weights, and drawn from.

Blanc, Rendle 2018, Adaptive Sampled Softmax with Kernel Based Sampling; kernels/tree.py describes
how it is stored. Draws within a leaf go by e^logit of the current weights, so only the branches are
as old as the last update; the probabilities returned are those used.

Shape letters: V classes, D their size, F features, L leaves, n classes a leaf, Q queries, M draws
of each, P pairs of a query and an excluded class.
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
from logitsieve.training.kernels.leaves import draw_in_leaves
from logitsieve.training.kernels.tree import add_to_paths, descend
from logitsieve.training.structures.features import Features

AT_ONCE = 1 << 22  # features held at a time while rows are added
# Updates of the float32 sums before a rebuild. Each rounds a sum once: the error is then about 1e-5
# of the sum.
REBUILD_AFTER = 10_000
NO_NUMBERS: Float64 = np.empty((0, 0))


@dataclass(frozen=True)
class Excluded:
    """Query r never draws ids[offsets[r] : offsets[r+1]], different ones, ascending."""

    offsets: Int64
    ids: Int64

    @staticmethod
    def nothing(queries: int) -> Excluded:
        return Excluded(np.zeros(queries + 1, np.int64), np.empty(0, np.int64))

    @staticmethod
    def of(rows: Tensor, classes: Tensor, queries: int, n_classes: int) -> Excluded:
        """The classes [P] that rows [P] exclude; duplicates are dropped."""
        pairs = np.unique((rows * n_classes + classes).cpu().numpy())
        counts = np.bincount(pairs // n_classes, minlength=queries)
        return Excluded(np.concatenate([[0], np.cumsum(counts)]), pairs % n_classes)

    def query_of_each(self) -> Int64:
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True)
class TreeQueries:
    """phi [Q, F] of contexts, or sums of them; no class has a mass below floors [Q]."""

    phi: Float32
    floors: Float64
    excluded: Excluded


class KernelTree:
    """Sums of phi over the classes below each branch: a Structure.

    Keeps each row as it was added, to subtract it again: in half precision where rows are
    normalised (phi is that of the rounded row, so nothing is lost).
    """

    def __init__(
        self, features: Features, in_features: int, n_classes: int, logit_form: LogitForm, leaf: int
    ) -> None:
        self.features, self.logit_form, self.classes = features, logit_form, n_classes
        self.leaves = 1 << max(0, (-(-n_classes // leaf) - 1).bit_length())
        self.per_leaf = -(-n_classes // self.leaves)
        self.sums: Float32 = np.zeros((self.leaves, features.size), np.float32)
        kept = torch.float32 if logit_form.scale is None else torch.float16
        self.rows = torch.zeros(n_classes, in_features, dtype=kept)
        self.updates = 0

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        self.sums[:] = 0
        self.updates = 0
        for first, last in self._parts(self.classes):
            self.rows[first:last] = self._as_kept(weight[first:last])
            phi = self._phi_of_kept(slice(first, last))
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
            before = self._phi_of_kept(host_rows)
            self.rows[host_rows] = self._as_kept(weight.index_select(0, moved))
            leaves = host_rows.numpy() // self.per_leaf
            add_to_paths(self.sums, leaves, self._phi_of_kept(host_rows) - before)

    def queries(self, vectors: Tensor, excluded: Excluded | None = None) -> TreeQueries:
        """A query for each of the contexts [Q, D]."""
        phi = self.features(as_numpy(vectors))
        floors = np.full(len(phi), self.features.floor)
        return TreeQueries(phi, floors, excluded or Excluded.nothing(len(phi)))

    def mixture(self, queries: TreeQueries) -> TreeQueries:
        """One query that draws from the mean of all distributions: sum of phi / (root mass)."""
        least = queries.floors * self.classes
        shares = 1 / np.maximum((queries.phi @ self.sums[0]).astype(np.float64), least)
        shares /= shares.max()  # only their ratios count, and 1 / least may exceed float32
        phi = (shares.astype(np.float32) @ queries.phi)[None]
        floors = np.array([(queries.floors * shares).sum()])
        return TreeQueries(phi, floors, Excluded.nothing(1))

    def draw_leaves(self, queries: TreeQueries, uniforms: Float64) -> tuple[Int64, Float64]:
        """Leaves, ascending, and log q, [Q, M] each, from uniforms [Q, M].

        Leaf -1 and log q = -inf where all classes are excluded.
        """
        leaves = np.empty(uniforms.shape, np.int64)
        return leaves, self._descend(queries, np.sort(uniforms, axis=1), leaves)

    def draw(
        self, queries: TreeQueries, hidden: Float32, weight: Tensor, uniforms: Float64
    ) -> tuple[Int64, Float64]:
        """Ids and log q, [Q, M] each, for prepared hidden [Q, D]; uniforms [2, Q, M].

        Id -1 and log q = -inf where all classes are excluded.
        """
        leaves, log_q = self.draw_leaves(queries, uniforms[0])
        ids = np.empty_like(leaves)
        self._within(queries, hidden, weight, uniforms[1], (leaves, ids, log_q))
        return ids, log_q

    def log_q(self, queries: TreeQueries, hidden: Float32, weight: Tensor, ids: Int64) -> Float64:
        """Log-probabilities [Q, M] that a draw of each query gives each of ids [M], ascending."""
        each = np.tile(ids, (len(hidden), 1))
        leaves = each // self.per_leaf
        log_q = self._descend(queries, None, leaves)
        self._within(queries, hidden, weight, None, (leaves, each, log_q))
        return log_q

    def members(self, leaves: Tensor) -> Tensor:
        """Class ids [L', n] of leaves [L'], padded by V."""
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
        step = max(AT_ONCE // self.features.size, 1)
        return [(first, min(first + step, count)) for first in range(0, count, step)]

    def _as_kept(self, weight: Tensor) -> Tensor:
        rows = weight.detach().cpu().float()
        if self.logit_form.scale is not None:
            rows = functional.normalize(rows, dim=-1)
        return rows.to(self.rows.dtype)

    def _phi_of_kept(self, rows: Tensor | slice) -> Float32:
        return self.features(self.rows[rows].float().numpy())

    def _descend(self, queries: TreeQueries, uniforms: Float64 | None, leaves: Int64) -> Float64:
        excluded = queries.excluded
        phi_of_excluded = self._phi_of_kept(torch.from_numpy(excluded.ids))
        of_query = queries.phi[excluded.query_of_each()]
        masses = np.einsum("pf,pf->p", of_query, phi_of_excluded).astype(np.float64)
        log_q = np.empty(leaves.shape)
        descend(
            self.sums, self.classes, self.per_leaf, queries.phi, queries.floors, excluded.offsets,
            excluded.ids, masses, uniforms is None, NO_NUMBERS if uniforms is None else uniforms,
            leaves, log_q,
        )  # fmt: skip
        return log_q

    def _within(
        self,
        queries: TreeQueries,
        hidden: Float32,
        weight: Tensor,
        uniforms: Float64 | None,
        drawn: tuple[Int64, Int64, Float64],
    ) -> None:
        matrix, starts = self._rows_of(drawn[0], weight)
        draw_in_leaves(
            matrix, starts, self.classes, self.per_leaf, self.logit_form.scale is not None,
            self.logit_form.absolute, hidden, queries.excluded.offsets, queries.excluded.ids,
            uniforms is None, NO_NUMBERS if uniforms is None else uniforms, *drawn,
        )  # fmt: skip

    def _rows_of(self, leaves: Int64, weight: Tensor) -> tuple[Float32, Int64]:
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous():
            return weight.numpy(), leaves * self.per_leaf
        different, places = np.unique(leaves.clip(min=0), return_inverse=True)
        ids = self.members(torch.from_numpy(different)).clamp(max=self.classes - 1)
        rows = weight.index_select(0, ids.view(-1).to(weight.device))
        return as_numpy(rows), places.reshape(leaves.shape) * self.per_leaf


def _shapes(state: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    named = {"sums": state["sums"], "rows": state["rows"], **state["features"]}
    return {name: tuple(each.shape) for name, each in named.items()}


def as_numpy(values: Tensor) -> Float32:
    array: Float32 = values.detach().cpu().float().contiguous().numpy()
    return array
