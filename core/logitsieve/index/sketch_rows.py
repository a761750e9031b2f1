"""Check that a sketch bounds the rows of its matrix, which the head `sketch` relies on.

docs/sketch.md and proofs/README.md ("The check of a sketch") state the inequalities. Any w' that
meets them proves the bounds of its row, however the sketch was made.

Shape letters: R rows of a block, F coded coordinates.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Bool, Float64, Int64
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.spec import Arrays
from logitsieve.index.reader import Report
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.levels import APART, CODE_BITS, LEVELS, NUMBERS_IN
from logitsieve.kernels.sketch.sketch import norm_of, numbers_of, widths_of

MIDDLE = 128  # the stored code of 0


class Coding(NamedTuple):
    """One coding of some rows, coarse or of a level, in float64."""

    name: str
    codes: Float64  # [R, F] of the coordinates from `first` on
    scales: Float64  # [R]
    rests: Float64  # [R] norms of the tails (coarse) or of the errors (a level)
    kappa: float
    most: float  # Q (coarse), or the largest norm of codes (a level)
    first: int = 0

    def coded(self, turned: Float64) -> Float64:
        """Return the coordinates that these codes encode."""
        return turned[:, self.first : self.first + self.codes.shape[1]]

    def errors(self, turned: Float64) -> Float64:
        """Return [R, F] coordinates minus what their codes stand for."""
        return self.coded(turned) - self.codes * self.scales[:, None]


def codings_of(sketch: Arrays, places: Int64) -> Iterator[Coding]:
    """Yield the codings of these rows: coarse, then each level."""
    widths, limits = widths_of(sketch), sketch["limits"].tolist()
    F, T, groups, lanes = widths.coarse, widths.tail, places // LANES, places % LANES
    taken = {name: sketch[name][groups] for name in NUMBERS_IN}
    of_groups = numbers_of({**sketch, **taken})
    numbers = [kind[np.arange(len(places)), lanes].astype(np.float64) for kind in of_groups]
    codes = _coarse(sketch, places, F)[:, : len(sketch["directions"])]
    yield Coding("coarse", codes, numbers[0], numbers[1], limits[0], limits[1])
    size = LANES * widths.padded // 8
    nibbles = np.zeros((len(places), widths.padded), np.uint8)
    for level in LEVELS:
        for plane in range(level.planes):
            bits = _bits(taken[level.array][:, plane * size : (plane + 1) * size], lanes)
            nibbles = 2 * nibbles + bits
    nibbles = nibbles[:, :T]
    most = float(np.sqrt(T)), *limits[2:4]
    pairs = zip(numbers[2::2], numbers[3::2], strict=True)
    for level, pair, longest in zip(LEVELS, pairs, most, strict=True):
        yield Coding(level.name, level_codes(nibbles, level.bits), *pair, np.inf, longest, F)


def _coarse(sketch: Arrays, places: Int64, width: int) -> Float64:
    rows, groups = np.arange(len(places)), sketch["coarse"][places // LANES, : LANES * width]
    quads = groups.reshape(len(places), width // 4, LANES, 4)[rows, :, places % LANES]
    return quads.reshape(len(places), width).astype(np.float64) - MIDDLE


def level_codes(codes_RT: np.ndarray, bits: int) -> Float64:
    """Return the odd integers that the first `bits` bits of codes stand for."""
    return np.asarray(2.0 * (codes_RT >> (CODE_BITS - bits)) - ((1 << bits) - 1), np.float64)


def _bits(planes: np.ndarray, lanes: Int64) -> np.ndarray:
    bytes_of = planes.reshape(len(planes), -1, LANES)[np.arange(len(planes)), :, lanes]
    return np.unpackbits(bytes_of, axis=1, bitorder="little")


SAMPLED = 1024
BLOCK_ROWS = 1024
COORDINATE_ROUNDING = 1 + 2.0**-24  # float32 coordinates; the kernels' margin allows for it
LEAST_SCALE = np.float32(1e-30)  # the kernels' bounds of underflow need it
LEAST_LENGTH = np.finfo(np.float64).tiny  # avoids a division by 0


class Solver(NamedTuple):
    """Coordinates w' of rows w, and the residuals w - U^T w'."""

    directions: Float64  # U [D, D]
    inverse: Float64  # w' = w @ inverse
    size: float  # the Frobenius norm of U
    rounding: float  # of a residual's norm in float64, for |w'| = 1

    def residuals(self, rows: Float64, turned: Float64, roundings: float = 1) -> Float64:
        """Return upper bounds [R] of the residuals' norms, for rows [R, D] and w' `turned`."""
        rounding = roundings * self.rounding * np.linalg.norm(turned, axis=1)
        norms: Float64 = np.linalg.norm(rows - turned @ self.directions, axis=1) + rounding
        return norms


class Block(NamedTuple):
    """Rows of W with their coordinates and codes."""

    rows: Int64
    weight: Float64  # [R, D]
    turned: Float64  # [R, D] w'
    residuals: Float64  # [R] upper bounds of the residuals' norms
    codings: list[Coding]


def solve(arrays: Arrays) -> Solver:
    """Return the solver of a sketch's coordinates; ValueError if U has no inverse."""
    directions, size = arrays["directions"].astype(np.float64), norm_of(arrays["directions"])
    try:
        inverse = np.asarray(np.linalg.inv(directions), np.float64)
    except np.linalg.LinAlgError as error:
        raise ValueError("directions has no inverse") from error
    rounding = 4 * (len(inverse) + 4) * float(np.finfo(np.float64).eps) * size
    return Solver(directions, inverse, size, rounding)


def sampled_rows(digest: str, vocab_size: int) -> Int64:
    """Return one row of each of SAMPLED equal stretches of W, chosen by the digest."""
    count = min(SAMPLED, vocab_size)
    borders = np.arange(count + 1) * vocab_size // count
    jitter = np.random.default_rng(int(digest, 16)).random(count)
    return borders[:-1] + (jitter * np.diff(borders)).astype(np.int64)


def check_rows(softmax: Softmax, sketch: Arrays, rows: Int64, report: Report) -> None:
    """Raise ValueError for the first of `rows` that the sketch does not bound."""
    limits = sketch["limits"]
    if not (limits >= 0).all():
        raise ValueError("limits are not all 0 or more")
    solver, left = solve(sketch), float(limits[4])
    with np.errstate(all="ignore"):  # comparisons with NaN fail
        for start in range(0, len(rows), BLOCK_ROWS):
            some = rows[start : start + BLOCK_ROWS]
            weight = softmax.rows(some).astype(np.float64)
            turned = weight @ solver.inverse
            residuals, codings = solver.residuals(weight, turned), codings_of(sketch, some)
            _check_block(Block(some, weight, turned, residuals, list(codings)), solver, left)
            report(len(some))


def _check_block(block: Block, solver: Solver, left: float) -> None:
    """Check the rows with w' in float64, then those that fail with w' in float32."""
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
    """Return [R] for each inequality, by name: True if it may fail for a row."""
    turned = block.turned
    spare = np.maximum(left - block.residuals, 0) / (3 * (1 + solver.size))  # e
    sure = {"left is below its residual": block.residuals <= left}
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
        tails = np.linalg.norm(turned[:, coded.shape[1] :], axis=1)
        held = tails <= coding.rests * COORDINATE_ROUNDING + spare
        sure[f"{name} length is below its tail's"] = held
    return {reason: ~held for reason, held in sure.items()}
