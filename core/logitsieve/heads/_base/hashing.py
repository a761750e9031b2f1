"""SimHash of rows and of queries, lifted as `reduction.py` says.

Shape letters: D hidden size, X = D + 2, L tables, N bits a table, J = L N planes, U vectors.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.results import Float32, Int32
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.retrieval.simhash import simhash_codes


def draw_planes(tables: int, bits: int, dim: int, seed: int) -> Float32:
    """float32 [L, N, X]: Gaussian; fewer tables are the first of more."""
    random = np.random.default_rng([seed, bits])
    return random.standard_normal((tables, bits, dim + 2), np.float32)


def of_queries(planes_LNX: Float32, beta: float) -> tuple[Float32, Float32]:
    """(planes [L, N, D], shifts [J]): what h~ = [h; beta; 0] makes of the planes."""
    shifts = planes_LNX[:, :, -2] * np.float32(beta)
    return np.ascontiguousarray(planes_LNX[:, :, :-2]), shifts.ravel()


def hash_vectors(vectors_UX: Float32, planes_LNX: Float32, threads: int) -> Int32:
    """int32 [U, L]: every vector's bucket in every table."""
    codes = np.empty((len(vectors_UX), len(planes_LNX)), np.int32)
    shifts = np.zeros(planes_LNX.shape[0] * planes_LNX.shape[1], np.float32)

    def fill(start: int, stop: int) -> int:
        simhash_codes(vectors_UX[start:stop], planes_LNX, shifts, codes[start:stop])
        return 0

    run_slices(fill, len(vectors_UX), threads)
    return codes
