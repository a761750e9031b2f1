"""Turns inner products with a bias into angles, for hashing.

logit_i = w~_i . h~ with w~ = [w; b / beta] and h~ = [h; beta], for any beta > 0. If w~ is extended
by sqrt(M^2 - ||w~||^2) and h~ by 0, angles order like inner products (Neyshabur, Srebro 2015, On
Symmetric and Asymmetric LSHs for Inner Product Search). Each range of norms may have its own M (Yan
et al. 2018, Norm-Ranging LSH). Rows are scaled to length 1.

Shape letters: U rows, J = L N planes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from logitsieve.api.results import Float32, Float64, Int32, Int64
from logitsieve.heads._base.head import Softmax
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.retrieval.hash_tables import simhash_codes

# Numbers of ranges of norms.
COSINE = 0  # norms are ignored
MIPS = 1  # one M for all rows
RANGED = 16  # ranges of equally many rows
HEADROOM = 1.2  # of the single M, so that rows may grow before all must be hashed again
BLOCK_ROWS = 8192
STEPS = 100


def best_beta(squares_V: Float64, bias_V: Float64, power: float) -> float:
    """Return the beta > 0 that minimises max ||w~|| sqrt(power + beta^2); `power` is E ||h||^2.

    A row's square is (||w||^2 + b^2 / x) (power + x) with x = beta^2. It is convex in x, so the
    largest of all rows is, too, and golden-section search finds its minimum.
    """
    curved = (bias_V != 0) & (squares_V > 0)
    if power <= 0 or not curved.any():
        return 1.0
    squares_V, bias_V = squares_V[curved], bias_V[curved]
    centers = np.abs(bias_V) * np.sqrt(power) / np.sqrt(squares_V)

    def badness(x: float) -> float:
        return float((squares_V + bias_V**2 / x).max() * (power + x))

    low, high = float(centers.min()), float(centers.max())
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(STEPS):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if badness(left) <= badness(right):
            high = right
        else:
            low = left
    return float(np.sqrt((low + high) / 2))


@dataclass(frozen=True, eq=False)
class Reduction:
    """Maps rows of W to vectors of length 1; `largest` [V] is each row's M."""

    softmax: Softmax
    ranges: int
    beta: float
    norms: Float64
    largest: Float64

    @classmethod
    def of(cls, softmax: Softmax, squares_V: Float64, ranges: int, beta: float) -> Reduction:
        """Make the map of a softmax; `squares_V` are ||w||^2."""
        norms = np.sqrt(squares_V + (softmax.bias.astype(np.float64) / beta) ** 2)
        largest = norms.copy()
        if ranges == MIPS:
            largest[:] = HEADROOM * norms.max()
        elif ranges > MIPS:
            for rows in np.array_split(np.argsort(norms, kind="stable"), ranges):
                largest[rows] = norms[rows].max(initial=0.0)
        return cls(softmax, ranges, beta, norms, np.where(largest > 0, largest, 1.0))

    def vectors(self, rows_U: Int64) -> Float32:
        """Return the vectors of these rows, float32 [U, X]."""
        vectors = np.empty((len(rows_U), self.softmax.dim + 2), np.float32)
        for start in range(0, len(rows_U), BLOCK_ROWS):
            rows = rows_U[start : start + BLOCK_ROWS]
            weight, bias = self.softmax.rows(rows), self.softmax.bias[rows]
            out = vectors[start : start + len(rows)]
            lift(weight, bias / self.beta, self.norms[rows], self.largest[rows], out)
        return vectors


def lift(
    weight_UD: Float32, bias_U: Float32, norms_U: Float64, largest_U: Float64, out_UX: Float32
) -> None:
    """Set out = [w; b; sqrt(M^2 - norm^2)] / M, where M is the row's `largest`."""
    scale = 1 / largest_U
    out_UX[:, :-2] = weight_UD * scale[:, None]
    out_UX[:, -2] = bias_U * scale
    out_UX[:, -1] = np.sqrt(np.maximum(1 - (norms_U / largest_U) ** 2, 0))


def squared_norms(softmax: Softmax) -> Float64:
    """Return ||w||^2 [V], in float64."""

    squares = np.empty(softmax.vocab_size)
    for start in range(0, softmax.vocab_size, BLOCK_ROWS):
        block = softmax.rows(slice(start, start + BLOCK_ROWS)).astype(np.float64)
        squares[start : start + BLOCK_ROWS] = np.einsum("vd,vd->v", block, block)
    return squares


def augmented(softmax: Softmax) -> Float32:
    """Return [V, D+2] unit rows [w; b; sqrt(M^2 - ||[w; b]||^2)] / M, M the largest norm of [w; b].

    For the query [h; 1; 0], the largest logit has the smallest distance and the smallest angle.
    """
    rows = np.empty((softmax.vocab_size, softmax.dim + 2), np.float32)
    squares_V = np.einsum("vd,vd->v", softmax.weight, softmax.weight, dtype=np.float64)
    squares_V += softmax.bias.astype(np.float64) ** 2
    largest = np.sqrt(squares_V.max()) or np.float64(1.0)  # float64: the norm may exceed float32
    np.divide(softmax.weight, largest, out=rows[:, :-2], casting="same_kind")
    np.divide(softmax.bias, largest, out=rows[:, -2], casting="same_kind")
    rows[:, -1] = np.sqrt(np.maximum(0.0, 1.0 - squares_V / largest**2))
    return rows


def draw_planes(tables: int, bits: int, dim: int, seed: int) -> Float32:
    """Draw Gaussian planes, float32 [L, N, X]. The first tables do not depend on their number."""
    random = np.random.default_rng([seed, bits])
    return random.standard_normal((tables, bits, dim + 2), np.float32)


def query_planes(planes_LNX: Float32, beta: float) -> tuple[Float32, Float32]:
    """Return (planes [L, N, D], shifts [J]) that hash h as the planes hash h~ = [h; beta; 0]."""
    shifts = planes_LNX[:, :, -2] * np.float32(beta)
    return np.ascontiguousarray(planes_LNX[:, :, :-2]), shifts.ravel()


def hash_vectors(vectors_UX: Float32, planes_LNX: Float32, threads: int) -> Int32:
    """Return each vector's bucket in each table, int32 [U, L]."""
    codes = np.empty((len(vectors_UX), len(planes_LNX)), np.int32)
    shifts = np.zeros(planes_LNX.shape[0] * planes_LNX.shape[1], np.float32)

    def fill(start: int, stop: int) -> int:
        simhash_codes(vectors_UX[start:stop], planes_LNX, shifts, codes[start:stop])
        return 0

    run_slices(fill, len(vectors_UX), threads)
    return codes
