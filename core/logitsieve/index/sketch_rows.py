"""The check that a sketch belongs to its matrix: the head `sketch` rests on it.

docs/certified.md states the inequalities, proofs/README.md derives the rounding that they may lack.
Any w' that meets them proves the bound of its row and, without levels, `norms`, however the sketch
was made.

Shape letters: P coordinates, R rows of a block, F coordinates coded.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Bool, Float32, Float64, Int64
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.index.reader import Report
from logitsieve.index.sketch_codes import Coding, codings_of
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.levels import APART
from logitsieve.kernels.sketch.sketch import SUMMED, SpanNorms, span_of

SAMPLED = 1024
BLOCK_ROWS = 1024
COORDINATE_ROUNDING = 1 + 2.0**-24  # of float32 coordinates, in the kernels' margin
LEAST_SCALE = np.float32(1e-30)  # the kernels' bounds of underflow need it
LEAST_LENGTH = np.finfo(np.float64).tiny  # of a tail that a number is divided by
GRAM_SPARE = 1e-9  # of a Gram matrix's trace, for 2^22 float64 sums of blocks
NORM_MARGINS = 1 + 1e-6, 1e-9  # of a norm, and of all coordinates: a check rounds otherwise
NORMS = tuple(
    f"{coding} {kind}" for coding in ("coarse", "fine") for kind in ("errors", "lengths", "rests")
)


class Residuals(NamedTuple):
    """Rows over their stretch minus their coordinates' part, and bounds of their norms."""

    rows: Float64  # [R, D]
    outside: Float64  # [R] at least the norm of each
    within: Float64  # [R] at least the norm of its products with U; with levels, `outside`


class Solver(NamedTuple):
    """Coordinates of rows over their stretch, and their residuals; with levels L U is U."""

    basis: Float64  # L U [P, D], over the stretch
    inverse: Float64  # [D, P], makes coordinates of rows
    span: SpanNorms
    rounding: float  # of a residual in float64, for coordinates of norm 1
    square: bool = False  # with levels

    def residuals(self, rows: Float64, turned: Float64, roundings: float = 1) -> Residuals:
        """Return residuals of rows [R, D] over their stretch with coordinates `turned` [R, P]."""
        others = rows - turned @ self.basis
        rounding = roundings * self.rounding * np.linalg.norm(turned, axis=1)
        outside = np.linalg.norm(others, axis=1) + rounding
        if self.square:
            return Residuals(others, outside, outside)
        within = np.linalg.norm(others @ self.span.directions.T, axis=1)
        rounded = 4 * rows.shape[1] * np.finfo(np.float64).eps * outside + rounding
        return Residuals(others, outside, within + self.span.size * rounded)


class Block(NamedTuple):
    """Rows of W, over their stretch, with their coordinates and codes."""

    rows: Int64
    weight: Float64  # [R, D]
    turned: Float64  # [R, P]
    residuals: Residuals
    codings: list[Coding]


def solve(arrays: Arrays) -> Solver:
    """Return the solver of a sketch's coordinates; ValueError if it has none."""
    span, square = span_of(arrays), "triangle" not in arrays
    matrix = span.directions if square else arrays["triangle"].astype(np.float64)
    if not square and np.triu(matrix, 1).any():
        raise ValueError("triangle is not zero above its diagonal")
    try:
        inverse = np.asarray(np.linalg.inv(matrix), np.float64)
    except np.linalg.LinAlgError as error:
        raise ValueError(f"{'directions' if square else 'triangle'} has no inverse") from error
    gain = 1.0 if square else span.gain
    rounding = 4 * (len(inverse) + 4) * float(np.finfo(np.float64).eps) * gain * span.size
    if square:
        return Solver(matrix, inverse, span, rounding, square)
    return Solver(matrix @ span.directions, span.directions.T @ inverse, span, rounding, square)


def sampled_rows(digest: str, vocab_size: int) -> Int64:
    """Draw rows to check by the digest, ascending: one of each of SAMPLED equal stretches."""
    count = min(SAMPLED, vocab_size)
    borders = np.arange(count + 1) * vocab_size // count  # whole, so that stretches share no row
    jitter = np.random.default_rng(int(digest, 16)).random(count)
    return borders[:-1] + (jitter * np.diff(borders)).astype(np.int64)


def check_rows(softmax: Softmax, sketch: Arrays, rows: Int64, report: Report) -> None:
    """ValueError names the first of these rows of W that the sketch does not bound, and why."""
    limits = sketch["limits"]
    if not (limits >= 0).all():
        raise ValueError("limits are not all 0 or more")
    if "middle" not in sketch:
        _check_biases(softmax.bias, sketch, places_of(sketch, softmax.vocab_size))
    solver, left = solve(sketch), float(limits[4])
    grams = None if "middle" in sketch else Grams(solver)
    with np.errstate(all="ignore"):  # numbers without sense fail as comparisons
        for block in _blocks(softmax, sketch, solver, rows):
            _check_block(block, solver, left)
            if grams is not None:
                grams.add(block)
            report(len(block.rows))
        if grams is None:
            return
        norms = zip(NORMS, sketch["norms"].tolist(), grams.norms().tolist(), strict=True)
    for name, norm, needed in norms:
        if not norm >= needed:
            raise ValueError(f"norms has {norm:.9g} for {name}, their rows have {needed:.9g}")


def _blocks(softmax: Softmax, sketch: Arrays, solver: Solver, rows: Int64) -> Iterator[Block]:
    stretch = sketch["stretch"].astype(np.float64) if "stretch" in sketch else 1.0
    places, left = places_of(sketch, softmax.vocab_size), float(sketch["limits"][4])
    for start in range(0, len(rows), BLOCK_ROWS):
        some = rows[start : start + BLOCK_ROWS]
        weight = softmax.rows(some).astype(np.float64) / stretch
        codings = list(codings_of(sketch, some, places[some]))
        yield Block(some, weight, *_coordinates(weight, solver, left), codings)


def places_of(sketch: Arrays, vocab_size: int) -> Int64:
    """Return [V] the place of each row of W in the sketch."""
    places = np.arange(vocab_size)
    if "order" in sketch:
        places[sketch["order"]] = np.arange(vocab_size)
    return places


class Grams:
    """Gram matrices of rows of coordinates, of their coding errors, and of their residuals."""

    def __init__(self, solver: Solver) -> None:
        count, dim = solver.basis.shape
        self._rounding = solver.rounding
        self._turned_PP, self._others_DD = np.zeros((count, count)), np.zeros((dim, dim))
        self._errors: dict[str, Float64] = {}  # [F, F] for each coding

    def add(self, block: Block) -> None:
        """Add a block of rows."""
        self._turned_PP += block.turned.T @ block.turned
        self._others_DD += block.residuals.rows.T @ block.residuals.rows
        for coding in block.codings:
            off = coding.errors(block.turned)
            self._errors[coding.name] = self._errors.get(coding.name, 0.0) + off.T @ off

    @property
    def length(self) -> float:
        """The Frobenius norm of all coordinates."""
        return float(np.sqrt(np.trace(self._turned_PP))) * SUMMED

    def norms(self, roundings: float = 1) -> Float64:
        """Bound the spectral norms NORMS, [6]: of each coding's errors, coordinates and rest."""
        norms, turned_PP = [], self._turned_PP
        outside = _spectral_norm(self._others_DD) + roundings * self._rounding * self.length
        for errors_FF in self._errors.values():
            coded = len(errors_FF)
            others = float(np.hypot(_spectral_norm(turned_PP[coded:, coded:]), outside)) * SUMMED
            norms += [_spectral_norm(errors_FF), _spectral_norm(turned_PP[:coded, :coded]), others]
        return np.array(norms)


def spectral_norms(softmax: Softmax, sketch: Arrays, report: Report) -> Float64:
    """Return the `norms` [6] for a sketch's other arrays, with a margin for the check."""
    solver, (share, floor) = solve(sketch), NORM_MARGINS
    grams, every = Grams(solver), np.arange(softmax.vocab_size)
    for block in _blocks(softmax, sketch, solver, every):
        grams.add(block)
        report(len(block.rows))
    return grams.norms(roundings=2) * share + floor * grams.length


def _spectral_norm(gram: Float64) -> float:
    """Bound the largest singular value of a matrix with this Gram matrix, from above."""
    if not gram.size:
        return 0.0
    if not np.isfinite(gram).all():
        return np.inf
    # A sum of products is off by a share of the sum of squares: so is the matrix, by its trace.
    largest = max(float(np.linalg.eigvalsh(gram)[-1]), 0.0) + GRAM_SPARE * float(np.trace(gram))
    return float(np.sqrt(largest)) * SUMMED


def _check_biases(bias: Float32, sketch: Arrays, places: Int64) -> None:
    stored = sketch["coarse"][:, -4 * LANES :].copy().view(np.float32).ravel()
    wrong = stored[places] != bias
    if wrong.any():
        raise ValueError(f"row {int(wrong.argmax())}: coarse has another bias")
    if (stored[len(bias) :] != -np.inf).any():
        raise ValueError("coarse has a bias beyond the vocabulary")


def _coordinates(weight: Float64, solver: Solver, left: float) -> tuple[Float64, Residuals]:
    """Return w' [R, P] in float64, rounded to float32 if its residual is above `left`."""
    turned = weight @ solver.inverse
    residuals = solver.residuals(weight, turned)
    far = ~(residuals.within <= left)
    if far.any():
        turned[far] = turned[far].astype(np.float32)
        residuals = solver.residuals(weight, turned)
    return turned, residuals


def _check_block(block: Block, solver: Solver, left: float) -> None:
    wrong = np.logical_or.reduce([*_broken(block, solver, left).values()])
    if not wrong.any():
        return
    turned = block.turned.copy()
    turned[wrong] = turned[wrong].astype(np.float32)
    block = block._replace(turned=turned, residuals=solver.residuals(block.weight, turned))
    for reason, broken in _broken(block, solver, left).items():
        if (broken & wrong).any():
            raise ValueError(f"row {int(block.rows[(broken & wrong).argmax()])}: {reason}")


def _broken(block: Block, solver: Solver, left: float) -> dict[str, Bool]:
    """Return [R] True for each inequality, by its name, if it may fail for a row."""
    # w' may move by `left` minus the residual.
    span, turned, residuals = solver.span, block.turned, block.residuals
    spare = np.maximum(left - residuals.within, 0) / (3 * (1 + span.gain) * (1 + span.skew))
    sure = {"left is below its residual": residuals.within <= left}
    for coding in block.codings:
        name, coded = coding.name, coding.coded(turned)
        errors = np.linalg.norm(coding.errors(turned), axis=1)
        lengths = np.linalg.norm(coded, axis=1)
        slack = (COORDINATE_ROUNDING - 1) * lengths + spare
        sure[f"{name} has no such scale"] = coding.scales >= LEAST_SCALE
        if coding.first:
            along = np.einsum("rt,rt->r", coding.errors(turned), coded)
            apart = np.abs(along) / np.maximum(lengths, LEAST_LENGTH)
            sure[f"{name} norm is below its error"] = errors <= coding.rests + slack
            held = APART * apart <= coding.rests * COORDINATE_ROUNDING + spare
            sure[f"{name} norm is below what is apart"] = held
            longest = np.linalg.norm(coding.codes, axis=1)
            sure[f"{name} codes are longer than their limit"] = longest <= coding.most
            continue
        off, long = coding.scales * coding.kappa + slack, coding.scales * coding.most + slack
        sure[f"{name} codes are farther off than kappa"] = errors <= off
        sure[f"{name} coordinates are longer than Q"] = lengths <= long
        others = np.linalg.norm(turned[:, coded.shape[1] :], axis=1)
        if not solver.square:
            others = np.hypot(others, residuals.outside)
        held = others <= coding.rests * COORDINATE_ROUNDING + spare
        sure[f"{name} rest is below its norm"] = held
    return {reason: ~held for reason, held in sure.items()}
