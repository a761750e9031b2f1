"""The check that rows of a sketch are those of its matrix: what `certified` proves rests on that.

docs/certified.md states the inequalities, and derives the rounding that they may lack. Any w' for
which they hold proves the bound of its row, so it does not matter how the sketch was made.

Shape letters: V vocabulary, D hidden size, R rows of a block, F coordinates coded, G groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Bool, Float32, Float64, Int64
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.index.checks import Report
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA
from logitsieve.utils.floats import widened

SAMPLED = 1024  # rows of a sample
BLOCK_ROWS = 1024
ROUNDED = 1 + 2.0**-24  # coordinates of a sketch are float32: a step of the kernels' margin
LEAST_SCALE = np.float32(1e-30)  # the kernels' bounds of underflow need it
MIDDLE = 128  # the code that stands for 0


class _Coding(NamedTuple):
    """Rows of one coding in float64, and the limits that they are to keep to."""

    name: str
    codes: Float64  # [R, F]
    scales: Float64  # [R]
    rests: Float64  # [R]
    kappa: float
    most: float


class _Turn(NamedTuple):
    """The basis B [D, D] and its inverse, and the residual that `limits` allow."""

    basis: Float64
    inverse: Float64
    size: float  # the norm of B
    left: float


def sampled_rows(digest: str, vocab_size: int) -> Int64:
    """Rows to check, ascending: one of each of SAMPLED equal stretches, drawn by the digest."""
    count = min(SAMPLED, vocab_size)
    jitter = np.random.default_rng(int(digest, 16)).random(count)
    rows = (np.arange(count) + jitter) * (vocab_size / count)
    return np.minimum(rows, vocab_size - 1).astype(np.int64)


def check_rows(softmax: Softmax, sketch: Arrays, rows: Int64, report: Report) -> None:
    """ValueError names the first of these rows of W that the sketch does not bound, and why.

    The arrays are checked as a part. `report` gets the rows done. Time O(D^3 + D^2 rows).
    """
    limits, V = sketch["limits"], softmax.vocab_size
    if not (limits >= 0).all():
        raise ValueError("limits are not all 0 or more")
    places = np.empty(V, np.int64)
    places[sketch["order"]] = np.arange(V)
    _check_biases(softmax.bias, sketch, places)
    basis: Float64 = sketch["basis"].astype(np.float64)
    try:
        inverse = np.asarray(np.linalg.inv(basis), np.float64)
    except np.linalg.LinAlgError as error:
        raise ValueError("basis has no inverse") from error
    turn = _Turn(basis, inverse, float(np.linalg.norm(basis)), float(limits[4]))
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        weight = widened(softmax.stored[block]).astype(np.float64)
        codings = list(_codings(sketch, block, places[block], softmax.dim))
        with np.errstate(all="ignore"):  # numbers without sense fail as comparisons
            _check_block(weight, turn, codings, block)
        report(len(block))


def _check_biases(bias: Float32, sketch: Arrays, places: Int64) -> None:
    stored = sketch["coarse"][:, -4 * LANES :].copy().view(np.float32).ravel()
    wrong = stored[places] != bias
    if wrong.any():
        raise ValueError(f"row {int(wrong.argmax())}: coarse has another bias")
    if (stored[len(bias) :] != -np.inf).any():
        raise ValueError("coarse has a bias beyond the vocabulary")


def _codings(sketch: Arrays, rows: Int64, places: Int64, dim: int) -> Iterator[_Coding]:
    """Both codings of these rows, which lie at `places` of `coarse`."""
    limits, fine = sketch["limits"].tolist(), sketch["fine"][rows]
    coded = min(dim, fine.shape[1] - EXTRA)
    groups, lane = sketch["coarse"][places // LANES], (np.arange(len(rows)), places % LANES)
    width = groups.shape[1] // LANES - COARSE_EXTRA
    quads = groups[:, : LANES * width].reshape(len(rows), width // 4, LANES, 4)
    coarse = quads[lane[0], :, lane[1]].reshape(len(rows), width)[:, :coded]
    extras = groups[:, LANES * width :].copy().view(np.float32).reshape(len(rows), 3, LANES)
    scales, rests, _ = extras[lane[0], :, lane[1]].T.astype(np.float64)
    yield _Coding("coarse", coarse.astype(np.float64) - MIDDLE, scales, rests, *limits[:2])
    scales, rests = fine[:, -EXTRA:].copy().view(np.float32).T.astype(np.float64)
    codes = fine[:, :coded].astype(np.float64) - MIDDLE
    yield _Coding("fine", codes, scales, rests, *limits[2:4])


def _check_block(weight: Float64, turn: _Turn, codings: list[_Coding], rows: Int64) -> None:
    """ValueError unless every row keeps to the limits, by its coordinates or these in float32.

    The second matter where all of W is so small that float32 has few bits for it.
    """
    turned = weight @ turn.inverse
    wrong = np.logical_or.reduce([*_broken(weight, turned, turn, codings).values()])
    if not wrong.any():
        return
    turned[wrong] = turned[wrong].astype(np.float32)
    for reason, broken in _broken(weight, turned, turn, codings).items():
        if (broken & wrong).any():
            raise ValueError(f"row {int(rows[(broken & wrong).argmax()])}: {reason}")


def _broken(
    weight: Float64, turned: Float64, turn: _Turn, codings: list[_Coding]
) -> dict[str, Bool]:
    """[R] for each inequality, by its name: the rows of which it is not sure."""
    norms = np.linalg.norm(turned, axis=1)
    rounding = 2 * turned.shape[1] * np.finfo(np.float64).eps * norms * turn.size
    residuals = np.linalg.norm(weight - turned @ turn.basis, axis=1) + rounding
    # w' may move by what the residual leaves of `left`: half of it for each part of it.
    spare = np.maximum(turn.left - residuals, 0) / (2 * turn.size)
    sure = {"left is below its residual": residuals <= turn.left}
    for name, codes, scales, rests, kappa, most in codings:
        coded = turned[:, : codes.shape[1]]
        errors = np.linalg.norm(coded - codes * scales[:, None], axis=1)
        lengths = np.linalg.norm(coded, axis=1)
        others = np.linalg.norm(turned[:, codes.shape[1] :], axis=1)
        slack = (ROUNDED - 1) * lengths + spare
        sure |= {
            f"{name} has no such scale": scales >= LEAST_SCALE,
            f"{name} codes are farther off than kappa": errors <= scales * kappa + slack,
            f"{name} coordinates are longer than Q": lengths <= scales * most + slack,
            f"{name} rest is below its norm": others <= rests * ROUNDED + spare,
        }
    return {reason: ~held for reason, held in sure.items()}
