"""Rows of W in the coordinates of a sketch, and a bound on their residuals."""

import hashlib
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Float64
from logitsieve.heads import Softmax
from logitsieve.heads._base.head import begin_sha256
from logitsieve.index.sketch_rows import Solver, solve
from logitsieve.index_builder.workers import Shared, Workers
from logitsieve.kernels.rows.functions import decoded
from logitsieve.utils.stored import StoredMatrix

BLOCK_ROWS = 4096


class RotatedRows(NamedTuple):
    """Rows w' of a sketch: w . h = w' . (U h) + u . h with u = w - U^T w'."""

    directions: np.ndarray  # U [D, D], float16
    rows: Float32  # w' [V, D]
    left: float  # >= ||u||
    sha256: str = ""  # of the rows w and their bias, as they were read


def rounded(basis_DD: Float64) -> np.ndarray:
    """Return it in float16, so scaled that the largest is from 1 on: others keep 2^-24 of it."""
    scaled_DD = np.ldexp(basis_DD, 1 - int(np.frexp(np.abs(basis_DD).max())[1]))
    return np.asarray(scaled_DD.astype(np.float16, order="C"))


class _Rows(NamedTuple):
    matrix: StoredMatrix
    solver: Solver


def rotate(softmax: Softmax, directions: np.ndarray, workers: Workers | None = None) -> RotatedRows:
    V = softmax.vocab_size
    turned_VD, left = np.empty((V, len(directions)), np.float32), 0.0
    matrix = softmax.matrix
    arrays = softmax.stored, directions
    shared = Shared(_rows(*arrays, matrix.kind), _rows, arrays, (matrix.kind,))
    starts = range(0, V, BLOCK_ROWS)
    results = (workers or Workers()).map(turn_block, ((shared, start) for start in starts))
    digest, same = begin_sha256(matrix), True
    for start, (rows_RD, most, sha256) in zip(starts, results, strict=True):
        data = matrix[start : start + BLOCK_ROWS].copy().data.data.cast("B")
        digest.update(data)
        # The hashed rows must equal the block's.
        same &= hashlib.sha256(data).digest() == sha256
        turned_VD[start : start + len(rows_RD)], left = rows_RD, max(left, most)
    digest.update(softmax.bias.data)
    return RotatedRows(directions, turned_VD, left, digest.hexdigest() if same else "")


def turn_block(rows: _Rows, start: int) -> tuple[Float32, float, bytes]:
    block = rows.matrix[start : start + BLOCK_ROWS].copy()  # the copy is hashed and used
    weight_RD = decoded(block).astype(np.float64)
    turned_RD = (weight_RD @ rows.solver.inverse).astype(np.float32)
    # Doubled, so that the check of a sketch, which recomputes w', has a margin for its rounding.
    kept_RD = turned_RD.astype(np.float64)
    left_R = rows.solver.outside(weight_RD, kept_RD, roundings=2)
    return turned_RD, float(left_R.max()), hashlib.sha256(block.data.data).digest()


def _rows(stored: np.ndarray, directions: np.ndarray, kind: str) -> _Rows:
    return _Rows(StoredMatrix(kind, stored), solve({"directions": directions}))
