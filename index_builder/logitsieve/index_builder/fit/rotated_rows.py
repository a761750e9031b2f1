"""Rows of W in the coordinates of a sketch, and bounds on each row's residual."""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Float64
from logitsieve.heads import Softmax
from logitsieve.heads._base.head import begin_sha256
from logitsieve.index.sketch_rows import Solver, solve
from logitsieve.index_builder.workers import Shared, Workers
from logitsieve.kernels.rows.functions import decoded
from logitsieve.utils.stored import StoredMatrix

BLOCK_ROWS = 4096


class Turning(NamedTuple):
    """The change of coordinates: a context h has L U h; with levels U h, and L is empty."""

    directions: np.ndarray  # U [P, D]; over `stretch`, its rows are orthonormal up to rounding
    stretch: Float32  # E [D]
    triangle: Float32  # L [P, P], zeros above its diagonal

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return self._asdict() if self.triangle.size else {"directions": self.directions}


class Turned(NamedTuple):
    """Rows w' for the sketch: w . h = w' . (L U h) + g . h with g = w - w' L U."""

    turning: Turning
    rows: Float32  # w' [V, P]
    outside: Float64  # [V] >= ||g / E||
    left: float  # >= ||(U / E) (g / E)||, the part of g in the span of U
    sha256: str = ""  # of the rows w and their bias, as they were read


def factored(rotation_PD: Float64, stretch_D: Float64 | None = None) -> Turning:
    exact_D = np.ones(rotation_PD.shape[1]) if stretch_D is None else stretch_D
    stretch = exact_D.astype(np.float32)
    axes_DP, upper_PP = np.linalg.qr((rotation_PD / stretch).T)
    directions, triangle = axes_DP.T * stretch, upper_PP.T
    return Turning(
        directions.astype(np.float32, order="C"), stretch, triangle.astype(np.float32, order="C")
    )


def square(basis_DD: Float64) -> Turning:
    """Return rounded to float16 and so scaled that the largest is from 1 on: others keep 2^-24."""
    scaled_DD = np.ldexp(basis_DD, 1 - int(np.frexp(np.abs(basis_DD).max())[1]))
    directions = scaled_DD.astype(np.float16, order="C")
    return Turning(directions, np.ones(len(directions), np.float32), np.empty((0, 0), np.float32))


class _Rows(NamedTuple):
    matrix: StoredMatrix
    turning: Turning
    solver: Solver


def turn(softmax: Softmax, turning: Turning, workers: Workers | None = None) -> Turned:
    V, count = softmax.vocab_size, len(turning.directions)
    turned_VP, outside_V, left = np.empty((V, count), np.float32), np.empty(V), 0.0
    matrix = softmax.matrix
    arrays = softmax.stored, *turning
    shared = Shared(_rows(*arrays, matrix.kind), _rows, arrays, (matrix.kind,))
    starts = range(0, V, BLOCK_ROWS)
    results = (workers or Workers()).map(turn_block, ((shared, start) for start in starts))
    digest, same = begin_sha256(matrix), True
    for start, (rows_RP, outside_R, most, sha256) in zip(starts, results, strict=True):
        data = matrix[start : start + BLOCK_ROWS].copy().data.data.cast("B")
        digest.update(data)
        # The hashed rows must equal the block's.
        same &= hashlib.sha256(data).digest() == sha256
        here = slice(start, start + len(rows_RP))
        turned_VP[here], outside_V[here], left = rows_RP, outside_R, max(left, most)
    digest.update(softmax.bias.data)
    return Turned(turning, turned_VP, outside_V, left, digest.hexdigest() if same else "")


def turn_block(rows: _Rows, start: int) -> tuple[Float32, Float64, float, bytes]:
    block = rows.matrix[start : start + BLOCK_ROWS].copy()  # the copy is hashed and used
    weight_RD = decoded(block).astype(np.float64) / rows.turning.stretch
    turned_RP = (weight_RD @ rows.solver.inverse).astype(np.float32)
    # Doubled, so that the check of a sketch, which recomputes w', has a margin for its rounding.
    kept_RP = turned_RP.astype(np.float64)
    _, outside_R, left_R = rows.solver.residuals(weight_RD, kept_RP, roundings=2)
    return turned_RP, outside_R, float(left_R.max()), hashlib.sha256(block.data.data).digest()


def _rows(stored: np.ndarray, *rest: Any) -> _Rows:
    *arrays, kind = rest
    turning = Turning(*arrays)
    return _Rows(StoredMatrix(kind, stored), turning, solve(turning.arrays))
