"""A kernel tree over the rows of W, and its feature maps.

phi(x).phi(y) equals a kernel of x and y, exactly or in expectation (Rawat et al. 2019, section 3;
Rahimi, Recht 2007 for RFF, Yu et al. 2016 for SORF). Random features estimate exp(-nu |x - y|^2 /
2), which for unit vectors is exp(nu (x.y - 1)) >= e^{-2 nu}. kernels/tree_sums.py has the layout.

Shape letters: N vectors, R random directions, F features, L leaves, n classes a leaf, M draws.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import exp
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.training.autograd.classes import LogitForm
from logitsieve.training.kernels.hadamard import padded, random_signs, structured_products
from logitsieve.training.kernels.tree_sums import add_to_paths, descend

FEATURES_AT_ONCE = 1 << 22
# After so many updates, the error of the float32 sums is about 1e-5 of a sum.
REBUILD_AFTER = 10_000


class Features(ABC):
    """A feature map. size: F. floor: a lower bound of the kernel. drawn: random parameters."""

    size: int
    floor: float
    drawn: dict[str, Float32]

    @abstractmethod
    def __call__(self, vectors: Float32) -> Float32:
        """Return phi [N, F] of vectors [N, D]."""


class RandomFourier(Features):
    """[cos(Omega u), sin(Omega u)] / sqrt(R), rows of Omega from N(0, nu I); F = 2 R.

    E cos(w.(x - y)) = exp(-nu |x - y|^2 / 2) needs w from N(0, nu I), not from N(0, I / nu) as in
    the paper's eq. 17.
    """

    def __init__(self, dim: int, directions: int, nu: float, seed: int) -> None:
        normal = np.random.default_rng(seed).standard_normal((directions, dim)) * nu**0.5
        self.drawn = {"omega": normal.astype(np.float32)}
        self.size, self.floor, self.nu = 2 * directions, exp(-2 * nu), nu

    def __call__(self, vectors: Float32) -> Float32:
        return _waves(self._angles(vectors).numpy())

    def _angles(self, vectors: Float32) -> Tensor:
        return torch.from_numpy(vectors) @ torch.from_numpy(self.drawn["omega"]).T


class StructuredFourier(Features):
    """RandomFourier with structured orthogonal directions: O(R log D) per vector, and less error.

    All directions have the norm sqrt(P), so the kernel has a bias, which falls with D.
    """

    def __init__(self, dim: int, directions: int, nu: float, seed: int) -> None:
        blocks = -(-directions // padded(dim))
        self.drawn = {"signs": random_signs(blocks, dim, np.random.default_rng(seed))}
        self.directions, self.stretch = directions, np.float32(nu**0.5)
        self.size, self.floor = 2 * directions, exp(-2 * nu)

    def __call__(self, vectors: Float32) -> Float32:
        blocks, _, width = self.drawn["signs"].shape
        products = np.empty((len(vectors), blocks * width), np.float32)
        structured_products(np.ascontiguousarray(vectors), self.drawn["signs"], products)
        return _waves(products[:, : self.directions] * self.stretch)


class PositiveFeatures(RandomFourier):
    """[e^{Omega u}, e^{-Omega u}] e^{-nu} / sqrt(2 R) of unit vectors u, Omega as in RandomFourier.

    E e^{w.(x + y)} = exp(nu |x + y|^2 / 2) gives the same kernel, and estimates are never negative
    (Choromanski et al. 2021, Rethinking Attention with Performers, lemma 1).
    """

    def __call__(self, vectors: Float32) -> Float32:
        angles = self._angles(vectors)
        phi = torch.cat([angles, -angles], 1).sub_(self.nu).exp_()
        return phi.mul_(self.size**-0.5).numpy()


class QuadraticFeatures(Features):
    """alpha (x.y)^2 + 1 exactly (eq. 15): sqrt(alpha) u_i u_j for i <= j (i < j twice), and 1."""

    def __init__(self, dim: int, alpha: float) -> None:
        self.rows, self.columns = np.triu_indices(dim)
        twice = np.where(self.rows < self.columns, 2.0, 1.0)
        self.factors = np.sqrt(alpha * twice).astype(np.float32)
        self.size, self.floor, self.drawn = len(self.rows) + 1, 1.0, {}

    def __call__(self, vectors: Float32) -> Float32:
        phi = np.ones((len(vectors), self.size), np.float32)
        phi[:, :-1] = vectors[:, self.rows] * vectors[:, self.columns] * self.factors
        return phi


def _waves(angles: Float32) -> Float32:
    count = angles.shape[1]
    phi = np.empty((len(angles), 2 * count), np.float32)
    np.cos(angles, out=phi[:, :count])
    np.sin(angles, out=phi[:, count:])
    phi *= np.float32(count**-0.5)
    return phi


FEATURES: dict[str, Callable[[int, int, float, int], Features]] = {
    "structured": StructuredFourier,
    "fourier": RandomFourier,
    "positive": PositiveFeatures,
}


class KernelTree:
    """A RowIndex by sums of phi over the classes below each branch; keeps the rows as added."""

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
        """Update the sums above ascending rows [N]: O(N F log L)."""
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

    def mixture(self, vectors: Tensor) -> tuple[Float32, float]:
        """Return phi [F] for the mean of the distributions of contexts [B, D], and its floor."""
        phi_BF = self.features(vectors.detach().cpu().float().contiguous().numpy())
        floor = self.features.floor
        masses_B = (phi_BF @ self.sums[0]).astype(np.float64)
        shares_B = 1 / np.maximum(masses_B, floor * self.classes)
        shares_B /= shares_B.max()  # only ratios count, and 1 / mass may exceed float32
        return shares_B.astype(np.float32) @ phi_BF, float((floor * shares_B).sum())

    def draw(self, query: tuple[Float32, float], uniforms: Float64) -> tuple[Int64, Float64]:
        leaves, log_q = np.empty(uniforms.size, np.int64), np.empty(uniforms.size)
        shape = self.classes, self.per_leaf
        descend(self.sums, *shape, *query, np.sort(uniforms), leaves, log_q)
        return leaves, log_q

    def members(self, leaves: Tensor) -> Tensor:
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
