"""The check that rows of a sketch are those of its matrix: what `certified` proves rests on that.

docs/certified.md states the inequalities, and derives the rounding that they may lack. Any w' for
which they hold proves the bound of its row, so it does not matter how the sketch was made. The same
w' prove its `norms`, which bound what the estimates of all rows together are off by.

Shape letters: V vocabulary, D hidden size, P coordinates, R rows of a block, F coordinates coded,
G groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Bool, Float32, Float64, Int64
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.index.contents import Report
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA, SUMMED, SpanNorms, span_of

SAMPLED = 1024  # rows of a sample
BLOCK_ROWS = 1024
ROUNDED = 1 + 2.0**-24  # coordinates of a sketch are float32: a step of the kernels' margin
LEAST_SCALE = np.float32(1e-30)  # the kernels' bounds of underflow need it
MIDDLE = 128  # the code that stands for 0
GRAM_SPARE = 1e-9  # of a Gram matrix's trace: 2^22 sums in float64, for 2^31 rows in blocks
ROOM = 1 + 1e-6, 1e-9  # of a norm, and of all coordinates, for a check that rounds otherwise
NORMS = tuple(
    f"{coding} {kind}" for coding in ("coarse", "fine") for kind in ("errors", "lengths", "rests")
)


class _Coding(NamedTuple):
    """Rows of one coding in float64, and the limits that they are to keep to."""

    name: str
    codes: Float64  # [R, F]
    scales: Float64  # [R]
    rests: Float64  # [R]
    kappa: float
    most: float


class Residuals(NamedTuple):
    """Rows over their stretch less what coordinates express, and lower bounds of its size."""

    rows: Float64  # [R, D]
    outside: Float64  # [R] at least the norm of each
    within: Float64  # [R] at least that of its products with U


class Solver(NamedTuple):
    """Coordinates of rows over their stretch, and what these leave of the rows."""

    basis: Float64  # L U [P, D], over the stretch
    inverse: Float64  # [D, P], by which rows become coordinates
    span: SpanNorms
    rounding: float  # of a residual in float64, for coordinates of norm 1

    def residuals(self, rows: Float64, turned: Float64, roundings: float = 1) -> Residuals:
        """Residuals of rows [R, D] over their stretch that have the coordinates `turned` [R, P]."""
        others = rows - turned @ self.basis
        rounding = roundings * self.rounding * np.linalg.norm(turned, axis=1)
        outside = np.linalg.norm(others, axis=1) + rounding
        within = np.linalg.norm(others @ self.span.directions.T, axis=1)
        rounded = 4 * rows.shape[1] * np.finfo(np.float64).eps * outside + rounding
        return Residuals(others, outside, within + self.span.size * rounded)


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
    """Rows to check, ascending: one of each of SAMPLED stretches of about V / SAMPLED rows, drawn
    by the digest."""
    count = min(SAMPLED, vocab_size)
    borders = np.arange(count + 1) * vocab_size // count  # whole, so that stretches share no row
    jitter = np.random.default_rng(int(digest, 16)).random(count)
    return borders[:-1] + (jitter * np.diff(borders)).astype(np.int64)


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
    grams, left = Grams(solver), float(limits[4])
    with np.errstate(all="ignore"):  # numbers without sense fail as comparisons
        for start in range(0, len(rows), BLOCK_ROWS):
            block = rows[start : start + BLOCK_ROWS]
            weight = softmax.rows(block).astype(np.float64) / stretch
            codings = list(_codings(sketch, block, places[block]))
            turned, residuals = _coordinates(weight, solver, left)
            _check_block(weight, turned, residuals, solver, left, codings, block)
            grams.add(turned, residuals, codings)
            report(len(block))
        _check_norms(sketch["norms"], grams.norms())


def spectral_norms(softmax: Softmax, sketch: Arrays, report: Report) -> Float64:
    """[6] the `norms` that a sketch of all other arrays stores, with room for its check.

    `report` gets the rows done. Time O(V (P D + D^2)).
    """
    stretch, left = sketch["stretch"].astype(np.float64), float(sketch["limits"][4])
    solver, places = solve(sketch), np.argsort(sketch["order"])
    grams = Grams(solver)
    for start in range(0, softmax.vocab_size, BLOCK_ROWS):
        rows = np.arange(start, min(start + BLOCK_ROWS, softmax.vocab_size))
        weight = softmax.rows(rows).astype(np.float64) / stretch
        grams.add(*_coordinates(weight, solver, left), _codings(sketch, rows, places[rows]))
        report(len(rows))
    share, floor = ROOM
    return grams.norms(roundings=2) * share + floor * grams.length


class Grams:
    """Gram matrices of rows of coordinates, of their coding errors, and of their residuals."""

    def __init__(self, solver: Solver) -> None:
        count, dim = solver.basis.shape
        self._rounding = solver.rounding
        self._turned_PP, self._others_DD = np.zeros((count, count)), np.zeros((dim, dim))
        self._errors: dict[str, Float64] = {}  # [F, F] for each coding

    def add(self, turned: Float64, residuals: Residuals, codings: Iterable[_Coding]) -> None:
        """Take in a block of rows."""
        self._turned_PP += turned.T @ turned
        self._others_DD += residuals.rows.T @ residuals.rows
        for coding in codings:
            off = turned[:, : coding.codes.shape[1]] - coding.codes * coding.scales[:, None]
            self._errors[coding.name] = self._errors.get(coding.name, 0.0) + off.T @ off

    @property
    def length(self) -> float:
        """The Frobenius norm of all coordinates."""
        return float(np.sqrt(np.trace(self._turned_PP))) * SUMMED

    def norms(self, roundings: float = 1) -> Float64:
        """[6] as NORMS has them: at least the spectral norms of three matrices for each coding.

        Of its errors, of its coordinates, and of what it leaves out.
        """
        norms, turned_PP = [], self._turned_PP
        # Each residual is off by so much of the norm of its coordinates.
        outside = _spectral_norm(self._others_DD) + roundings * self._rounding * self.length
        for errors_FF in self._errors.values():
            coded = len(errors_FF)
            others = float(np.hypot(_spectral_norm(turned_PP[coded:, coded:]), outside)) * SUMMED
            norms += [_spectral_norm(errors_FF), _spectral_norm(turned_PP[:coded, :coded]), others]
        return np.array(norms)


def _spectral_norm(gram: Float64) -> float:
    """At least the largest singular value of a matrix with this Gram matrix, but for rounding."""
    if not gram.size:
        return 0.0
    if not np.isfinite(gram).all():
        return np.inf
    # A sum of products is off by a share of the sum of squares: so is the matrix, by its trace.
    largest = max(float(np.linalg.eigvalsh(gram)[-1]), 0.0) + GRAM_SPARE * float(np.trace(gram))
    return float(np.sqrt(largest)) * SUMMED


def _check_norms(stored: Float64, least: Float64) -> None:
    for name, norm, needed in zip(NORMS, stored.tolist(), least.tolist(), strict=True):
        if not norm >= needed:
            raise ValueError(f"norms has {norm:.9g} for {name}, their rows have {needed:.9g}")


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


def _coordinates(weight: Float64, solver: Solver, left: float) -> tuple[Float64, Residuals]:
    """w' [R, P] in float64, in float32 where its residual is above `left` otherwise."""
    turned = weight @ solver.inverse
    residuals = solver.residuals(weight, turned)
    far = ~(residuals.within <= left)
    if far.any():
        turned[far] = turned[far].astype(np.float32)
        residuals = solver.residuals(weight, turned)
    return turned, residuals


def _check_block(
    weight: Float64,
    turned: Float64,
    residuals: Residuals,
    solver: Solver,
    left: float,
    codings: list[_Coding],
    rows: Int64,
) -> None:
    """ValueError unless every row keeps to the limits, by its coordinates or these in float32.

    The second matter where all of W is so small that float32 has few bits for it.
    """
    wrong = np.logical_or.reduce([*_broken(turned, residuals, solver, left, codings).values()])
    if not wrong.any():
        return
    turned = turned.copy()
    turned[wrong] = turned[wrong].astype(np.float32)
    residuals = solver.residuals(weight, turned)
    for reason, broken in _broken(turned, residuals, solver, left, codings).items():
        if (broken & wrong).any():
            raise ValueError(f"row {int(rows[(broken & wrong).argmax()])}: {reason}")


def _broken(
    turned: Float64, residuals: Residuals, solver: Solver, left: float, codings: list[_Coding]
) -> dict[str, Bool]:
    """[R] for each inequality, by its name: the rows of which it is not sure."""
    # w' may move by what the residual leaves of `left`.
    span = solver.span
    spare = np.maximum(left - residuals.within, 0) / (3 * (1 + span.gain) * (1 + span.skew))
    sure = {"left is below its residual": residuals.within <= left}
    for name, codes, scales, rests, kappa, most in codings:
        coded = turned[:, : codes.shape[1]]
        errors = np.linalg.norm(coded - codes * scales[:, None], axis=1)
        lengths = np.linalg.norm(coded, axis=1)
        others = np.hypot(np.linalg.norm(turned[:, codes.shape[1] :], axis=1), residuals.outside)
        slack = (ROUNDED - 1) * lengths + spare
        sure |= {
            f"{name} has no such scale": scales >= LEAST_SCALE,
            f"{name} codes are farther off than kappa": errors <= scales * kappa + slack,
            f"{name} coordinates are longer than Q": lengths <= scales * most + slack,
            f"{name} rest is below its norm": others <= rests * ROUNDED + spare,
        }
    return {reason: ~held for reason, held in sure.items()}
