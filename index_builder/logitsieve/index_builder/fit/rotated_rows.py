"""Rows of W in the coordinates of a sketch, and the most that these leave of each.

Shape letters: V vocabulary, D hidden size, P coordinates, R rows of a block.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Float64
from logitsieve.heads import Softmax
from logitsieve.heads._base.head import begin_sha256
from logitsieve.index.sketch_rows import Solver, solve
from logitsieve.index_builder.workers import Shared, Workers
from logitsieve.kernels.rows.decode import decoded
from logitsieve.utils.stored import StoredMatrix

BLOCK_ROWS = 4096


class Turning(NamedTuple):
    """The change of coordinates as it is stored: a context h has the coordinates L U h."""

    directions: Float32  # U [P, D]; over `stretch`, its rows are orthonormal but for rounding
    stretch: Float32  # E [D]
    triangle: Float32  # L [P, P], zeros above its diagonal


class Turned(NamedTuple):
    """Rows as `certified` takes them: w . h = w' . (L U h), but for g . h with g = w - w' L U."""

    turning: Turning
    rows: Float32  # w' [V, P]
    outside: Float64  # [V] >= ||g / E||
    left: float  # >= ||(U / E) (g / E)||, what of g is in the span of U all the same
    sha256: str = ""  # of the rows w and their bias, as they were read


def factored(rotation_PD: Float64, stretch_D: Float64 | None = None) -> Turning:
    """L and U, as they are stored, whose product is near `rotation_PD`."""
    exact_D = np.ones(rotation_PD.shape[1]) if stretch_D is None else stretch_D
    stretch = exact_D.astype(np.float32)
    axes_DP, upper_PP = np.linalg.qr((rotation_PD / stretch).T)
    directions, triangle = axes_DP.T * stretch, upper_PP.T
    return Turning(
        directions.astype(np.float32, order="C"), stretch, triangle.astype(np.float32, order="C")
    )


class _Rows(NamedTuple):
    """The rows of W and the change of coordinates, for a worker."""

    matrix: StoredMatrix
    turning: Turning
    solver: Solver


def turn(softmax: Softmax, turning: Turning, workers: Workers | None = None) -> Turned:
    """Coordinates of every row, and the most that is left over of it."""
    V, count = softmax.vocab_size, len(turning.directions)
    turned_VP, outside_V, left = np.empty((V, count), np.float32), np.empty(V), 0.0
    matrix = softmax.matrix
    shared = Shared(_rows(matrix, turning), _make_rows, (softmax.stored, *turning), (matrix.kind,))
    starts = range(0, V, BLOCK_ROWS)
    results = (workers or Workers()).map(turn_block, ((shared, start) for start in starts))
    digest, same = begin_sha256(matrix.kind, matrix.shape), True
    for start, (rows_RP, outside_R, most, sha256) in zip(starts, results, strict=True):
        data = matrix[start : start + BLOCK_ROWS].copy().data.data.cast("B")
        digest.update(data)
        # The rows that are hashed here have to be those that the block was made of.
        same &= hashlib.sha256(data).digest() == sha256
        here = slice(start, start + len(rows_RP))
        turned_VP[here], outside_V[here], left = rows_RP, outside_R, max(left, most)
    digest.update(softmax.bias.data)
    return Turned(turning, turned_VP, outside_V, left, digest.hexdigest() if same else "")


def turn_block(rows: _Rows, start: int) -> tuple[Float32, Float64, float, bytes]:
    """(w' [R, P], what is outside [R], the most within the span) of rows, and their sha256."""
    block = rows.matrix[start : start + BLOCK_ROWS].copy()  # hashed as it is used
    weight_RD = decoded(block).astype(np.float64) / rows.turning.stretch
    turned_RP = (weight_RD @ rows.solver.inverse).astype(np.float32)
    # Twice, so that the check of a sketch, which computes w' anew, has room for its rounding.
    kept_RP = turned_RP.astype(np.float64)
    _, outside_R, left_R = rows.solver.residuals(weight_RD, kept_RP, roundings=2)
    return turned_RP, outside_R, float(left_R.max()), hashlib.sha256(block.data.data).digest()


def _rows(matrix: StoredMatrix, turning: Turning) -> _Rows:
    return _Rows(matrix, turning, solve(turning._asdict()))


def _make_rows(stored: np.ndarray, *rest: Any) -> _Rows:
    *turning, kind = rest
    return _rows(StoredMatrix(kind, stored), Turning(*turning))
