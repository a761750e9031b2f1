"""Feature maps phi: phi(x).phi(y) equals a kernel of x and y, in expectation or exactly.

Rawat et al. 2019, Sampled Softmax with Random Fourier Features, section 3; Rahimi, Recht 2007 for
RFF, Yu et al. 2016 for SORF. Both estimate exp(-nu |x - y|^2 / 2), which is exp(nu (x.y - 1)) for
vectors of norm 1 and so at least e^{-2 nu}.

Shape letters: N vectors, D their size, R random directions, F features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import exp

import numpy as np
import torch

from logitsieve.api.results import Float32
from logitsieve.training.kernels.hadamard import random_signs, structured_products


class Features(ABC):
    """A feature map.

    size: F. floor: lower bound of the kernel, for vectors it is meant for. drawn: random
    parameters, to be saved with the sums computed from them.
    """

    size: int
    floor: float
    drawn: dict[str, Float32]

    @abstractmethod
    def __call__(self, vectors: Float32) -> Float32:
        """phi [N, F] of vectors [N, D]."""


class RandomFourier(Features):
    """[cos(Omega u), sin(Omega u)] / sqrt(R), rows of Omega from N(0, nu I); F = 2 R.

    With w from N(0, nu I), E cos(w.(x - y)) = exp(-nu |x - y|^2 / 2): the N(0, I / nu) that is
    printed below eq. 17 belongs to another kernel.
    """

    def __init__(self, dim: int, directions: int, nu: float, seed: int) -> None:
        normal = np.random.default_rng(seed).standard_normal((directions, dim)) * nu**0.5
        self.drawn = {"omega": normal.astype(np.float32)}
        self.size, self.floor = 2 * directions, exp(-2 * nu)

    def __call__(self, vectors: Float32) -> Float32:
        angles = torch.from_numpy(vectors) @ torch.from_numpy(self.drawn["omega"]).T
        return _waves(angles.numpy())  # by torch: with the threads that the user chose


class StructuredFourier(Features):
    """RandomFourier with structured orthogonal directions: O(R log D) a vector, less error.

    All directions of a block have one norm, sqrt(P): the kernel has a bias that falls with D.
    """

    def __init__(self, dim: int, directions: int, nu: float, seed: int) -> None:
        width = random_signs(1, dim, np.random.default_rng(0)).shape[2]
        blocks = -(-directions // width)
        self.drawn = {"signs": random_signs(blocks, dim, np.random.default_rng(seed))}
        self.directions, self.stretch = directions, np.float32(nu**0.5)
        self.size, self.floor = 2 * directions, exp(-2 * nu)

    def __call__(self, vectors: Float32) -> Float32:
        blocks, _, width = self.drawn["signs"].shape
        products = np.empty((len(vectors), blocks * width), np.float32)
        structured_products(np.ascontiguousarray(vectors), self.drawn["signs"], products)
        return _waves(products[:, : self.directions] * self.stretch)


class QuadraticFeatures(Features):
    """alpha (x.y)^2 + 1 exactly (eq. 15): sqrt(alpha) u_i u_j for i <= j, i < j twice, and 1.

    u u^T is symmetric: D (D + 1) / 2 + 1 features instead of the paper's D^2 + 1.
    """

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


# By the name that `features` of RandomFeatures takes.
FEATURES: dict[str, Callable[[int, int, float, int], Features]] = {
    "structured": StructuredFourier,
    "fourier": RandomFourier,
}
