"""The check that rows of a sketch are those of its matrix: what `certified` proves rests on that.

docs/certified.md states the inequalities, and derives the rounding that they may lack. Any w' for
which they hold proves the bound of its row, so it does not matter how the sketch was made.

Shape letters: V vocabulary, D hidden size, P coordinates, R rows of a block, F coordinates coded,
G groups.
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
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA, SpanNorms, span_of
from logitsieve.utils.floats import widened

SAMPLED = 1024  # rows of a sample
BLOCK_ROWS = 1024
ROUNDED = 1 + 2.0**-24  # coordinates of a sketch are float32: a step of the kernels' margin
LEAST_SCALE = np.float32(1e-30)  # the kernels' bounds of underflow need it
MIDDLE = 128  # the code that stands for 0
GRAM_SPARE = 1e-9  # of the trace of a Gram matrix, for 2^20 sums in float64
SUMMED = 1 + 1e-9  # of a root of it


class _Coding(NamedTuple):
    """Rows of one coding in float64, and the limits that they are to keep to."""

    name: str
    codes: Float64  # [R, F]
    scales: Float64  # [R]
    rests: Float64  # [R]
    kappa: float
    most: float


class Solver(NamedTuple):
    """Coordinates of rows over their stretch, and what these leave of the rows."""

    basis: Float64  # L U [P, D], over the stretch
    inverse: Float64  # [D, P], by which rows become coordinates
    span: SpanNorms
    rounding: float  # of a residual in float64, for coordinates of norm 1

    def residuals(
        self, rows: Float64, turned: Float64, roundings: float = 1
    ) -> tuple[Float64, Float64]:
        """[R] at least the norm of each residual, and that of its products with U."""
        others = rows - turned @ self.basis
        rounding = roundings * self.rounding * np.linalg.norm(turned, axis=1)
        outside = np.linalg.norm(others, axis=1) + rounding
        within = np.linalg.norm(others @ self.span.directions.T, axis=1)
        rounded = 4 * rows.shape[1] * np.finfo(np.float64).eps * outside + rounding
        return outside, within + self.span.size * rounded


def solve(arrays: Arrays) -> Solver:
    """The solver of a sketch's coordinates; ValueError if it has none."""
    span, triangle = span_of(arrays), arrays["triangle"].astype(np.float64)
    if np.triu(triangle, 1).any():
        raise ValueError("triangle is not zero above its diagonal")
    try:
        inverse = np.asarray(np.linalg.inv(triangle), np.float64)
    except np.linalg.LinAlgError as error:
        raise ValueError("triangle has no inverse") from error
    rounding = 4 * (len(triangle) + 4) * float(np.finfo(np.float64).eps) * span.gain * span.size
    return Solver(triangle @ span.directions, span.directions.T @ inverse, span, rounding)


def sampled_rows(digest: str, vocab_size: int) -> Int64:
    """Rows to check, ascending: one of each of SAMPLED equal stretches, drawn by the digest."""
    count = min(SAMPLED, vocab_size)
    jitter = np.random.default_rng(int(digest, 16)).random(count)
    rows = (np.arange(count) + jitter) * (vocab_size / count)
    return np.minimum(rows, vocab_size - 1).astype(np.int64)


def check_rows(softmax: Softmax, sketch: Arrays, rows: Int64, report: Report) -> None:
    """ValueError names the first of these rows of W that the sketch does not bound, and why.

    The arrays are checked as a part. `report` gets the rows done. Time O(P^2 D + P D rows).
    """
    limits, V = sketch["limits"], softmax.vocab_size
    if not (limits >= 0).all():
        raise ValueError("limits are not all 0 or more")
    places = np.empty(V, np.int64)
    places[sketch["order"]] = np.arange(V)
    _check_biases(softmax.bias, sketch, places)
    solver, stretch = solve(sketch), sketch["stretch"].astype(np.float64)
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        weight = widened(softmax.stored[block]).astype(np.float64) / stretch
        codings = list(_codings(sketch, block, places[block]))
        with np.errstate(all="ignore"):  # numbers without sense fail as comparisons
            _check_block(weight, solver, float(limits[4]), codings, block)
        report(len(block))


def spectral_norms(softmax: Softmax, sketch: Arrays, report: Report) -> Float64:
    """[6] for either coding: the largest singular values of three matrices of all rows.

    Those of coding errors, of the coordinates that are coded, and of what is left out. In float64,
    and not below the true ones. Time O(V (P^2 + D^2)).
    """
    solver, stretch = solve(sketch), sketch["stretch"].astype(np.float64)
    places = np.argsort(sketch["order"])
    count, dim = solver.basis.shape
    turned_PP, outside_DD = np.zeros((count, count)), np.zeros((dim, dim))
    errors: dict[str, Float64] = {}
    for start in range(0, softmax.vocab_size, BLOCK_ROWS):
        rows = np.arange(start, min(start + BLOCK_ROWS, softmax.vocab_size))
        weight = widened(softmax.stored[rows]).astype(np.float64) / stretch
        turned = weight @ solver.inverse
        outside = weight - turned @ solver.basis
        turned_PP += turned.T @ turned
        outside_DD += outside.T @ outside
        for coding in _codings(sketch, rows, places[rows]):
            off = turned[:, : coding.codes.shape[1]] - coding.codes * coding.scales[:, None]
            errors[coding.name] = errors.get(coding.name, 0.0) + off.T @ off
        report(len(rows))
    norms = []
    for error_FF in errors.values():
        coded = len(error_FF)
        left = _largest(turned_PP[coded:, coded:]) + _largest(outside_DD)
        norms += [_largest(error_FF), _largest(turned_PP[:coded, :coded]), left]
    return np.sqrt(norms) * SUMMED


def _largest(gram: Float64) -> float:
    """The largest eigenvalue of a Gram matrix, with what rounding may have taken from it."""
    if not gram.size:
        return 0.0
    return max(float(np.linalg.eigvalsh(gram)[-1]), 0.0) + GRAM_SPARE * float(np.trace(gram))


def _check_biases(bias: Float32, sketch: Arrays, places: Int64) -> None:
    stored = sketch["coarse"][:, -4 * LANES :].copy().view(np.float32).ravel()
    wrong = stored[places] != bias
    if wrong.any():
        raise ValueError(f"row {int(wrong.argmax())}: coarse has another bias")
    if (stored[len(bias) :] != -np.inf).any():
        raise ValueError("coarse has a bias beyond the vocabulary")


def _codings(sketch: Arrays, rows: Int64, places: Int64) -> Iterator[_Coding]:
    """Both codings of these rows, which lie at `places` of `coarse`."""
    limits, fine = sketch["limits"].tolist(), sketch["fine"][rows]
    coded = min(len(sketch["directions"]), fine.shape[1] - EXTRA)
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


def _check_block(
    weight: Float64, solver: Solver, left: float, codings: list[_Coding], rows: Int64
) -> None:
    """ValueError unless every row keeps to the limits, by its coordinates or these in float32.

    The second matter where all of W is so small that float32 has few bits for it.
    """
    turned = weight @ solver.inverse
    wrong = np.logical_or.reduce([*_broken(weight, turned, solver, left, codings).values()])
    if not wrong.any():
        return
    turned[wrong] = turned[wrong].astype(np.float32)
    for reason, broken in _broken(weight, turned, solver, left, codings).items():
        if (broken & wrong).any():
            raise ValueError(f"row {int(rows[(broken & wrong).argmax()])}: {reason}")


def _broken(
    weight: Float64, turned: Float64, solver: Solver, left: float, codings: list[_Coding]
) -> dict[str, Bool]:
    """[R] for each inequality, by its name: the rows of which it is not sure."""
    outside, within = solver.residuals(weight, turned)
    # w' may move by what the residual leaves of `left`.
    span = solver.span
    spare = np.maximum(left - within, 0) / (3 * (1 + span.gain) * (1 + span.skew))
    sure = {"left is below its residual": within <= left}
    for name, codes, scales, rests, kappa, most in codings:
        coded = turned[:, : codes.shape[1]]
        errors = np.linalg.norm(coded - codes * scales[:, None], axis=1)
        lengths = np.linalg.norm(coded, axis=1)
        others = np.hypot(np.linalg.norm(turned[:, codes.shape[1] :], axis=1), outside)
        slack = (ROUNDED - 1) * lengths + spare
        sure |= {
            f"{name} has no such scale": scales >= LEAST_SCALE,
            f"{name} codes are farther off than kappa": errors <= scales * kappa + slack,
            f"{name} coordinates are longer than Q": lengths <= scales * most + slack,
            f"{name} rest is below its norm": others <= rests * ROUNDED + spare,
        }
    return {reason: ~held for reason, held in sure.items()}
