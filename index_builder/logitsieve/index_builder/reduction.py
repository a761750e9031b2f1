"""Turn inner products with a bias into angles: unit vectors in place of W's rows.

w . h + b is a product with the query [h; 1; 0]. Neyshabur, Srebro 2015, On Symmetric and Asymmetric
LSHs for Inner Product Search: rows extended to equal norms have angles in the order of products.

Shape letters: U rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from logitsieve.api.results import Float32, Int32
from logitsieve.heads._base.head import Softmax
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.retrieval.hash_tables import simhash_codes


def augmented(softmax: Softmax) -> Float32:
    """Return [V, D+2] unit rows [w; b; sqrt(M^2 - ||[w; b]||^2)] / M, M the largest norm of [w; b].

    With the query [h; 1; 0] the largest logit is the smallest distance and the smallest angle.
    """
    rows = np.empty((softmax.vocab_size, softmax.dim + 2), np.float32)
    squares_V = np.einsum("vd,vd->v", softmax.weight, softmax.weight, dtype=np.float64)
    squares_V += softmax.bias.astype(np.float64) ** 2
    largest = np.sqrt(squares_V.max()) or np.float64(1.0)  # float64: the norm may exceed float32
    np.divide(softmax.weight, largest, out=rows[:, :-2], casting="same_kind")
    np.divide(softmax.bias, largest, out=rows[:, -2], casting="same_kind")
    rows[:, -1] = np.sqrt(np.maximum(0.0, 1.0 - squares_V / largest**2))
    return rows


def by_angle(softmax: Softmax) -> Float32:
    """Return [V, D+2] unit rows in the direction of [w; b; 0]; zero rows stay zero."""
    rows = augmented(softmax)
    rows[:, -1] = 0.0
    norms = np.sqrt(np.einsum("vd,vd->v", rows, rows, dtype=np.float64))
    np.divide(rows, np.where(norms > 0, norms, 1)[:, None], out=rows, casting="same_kind")
    return rows


REDUCTIONS: tuple[Callable[[Softmax], Float32], ...] = (augmented, by_angle)


def draw_planes(tables: int, bits: int, dim: int, seed: int) -> Float32:
    """Draw Gaussian planes, float32 [L, N, X]; fewer tables are the first of more."""
    random = np.random.default_rng([seed, bits])
    return random.standard_normal((tables, bits, dim + 2), np.float32)


def query_planes(planes_LNX: Float32) -> tuple[Float32, Float32]:
    """Return (planes [L, N, D], shifts [L N]) that hash h as the planes hash [h; 1; 0]."""
    return np.ascontiguousarray(planes_LNX[:, :, :-2]), planes_LNX[:, :, -2].ravel()


def hash_vectors(vectors_UX: Float32, planes_LNX: Float32, threads: int) -> Int32:
    """Return the bucket of every vector in every table, int32 [U, L]."""
    codes = np.empty((len(vectors_UX), len(planes_LNX)), np.int32)
    shifts = np.zeros(planes_LNX.shape[0] * planes_LNX.shape[1], np.float32)

    def fill(start: int, stop: int) -> int:
        simhash_codes(vectors_UX[start:stop], planes_LNX, shifts, codes[start:stop])
        return 0

    run_slices(fill, len(vectors_UX), threads)
    return codes
