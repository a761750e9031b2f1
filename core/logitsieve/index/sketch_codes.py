"""The codes of a sketch's rows, and their limits, read as numbers in float64.

Shape letters: R rows of a block, F coordinates coded, W of four-bit codes, padded.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float64, Int64
from logitsieve.heads._base.spec import Arrays
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.levels import CODE_BITS, LEVELS, NUMBERS_IN
from logitsieve.kernels.sketch.sketch import numbers_of, widths_of

MIDDLE = 128  # the code that stands for 0


class Coding(NamedTuple):
    """Rows of one coding in float64, and their limits."""

    name: str
    codes: Float64  # [R, F] of the coordinates from `first` on
    scales: Float64  # [R]
    rests: Float64  # [R] norms of the rest; of a level, of its errors
    kappa: float
    most: float
    first: int = 0

    def coded(self, turned: Float64) -> Float64:
        """Return the coordinates that these codes encode."""
        return turned[:, self.first : self.first + self.codes.shape[1]]

    def errors(self, turned: Float64) -> Float64:
        """Return [R, F] coordinates minus codes."""
        return self.coded(turned) - self.codes * self.scales[:, None]


def codings_of(sketch: Arrays, places: Int64) -> Iterator[Coding]:
    """Yield all codings of these rows: of the first coordinates, then of each level."""
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
    """Return the odd whole numbers that the first `bits` bits of codes mean."""
    return np.asarray(2.0 * (codes_RT >> (CODE_BITS - bits)) - ((1 << bits) - 1), np.float64)


def _bits(planes: np.ndarray, lanes: Int64) -> np.ndarray:
    bytes_of = planes.reshape(len(planes), -1, LANES)[np.arange(len(planes)), :, lanes]
    return np.unpackbits(bytes_of, axis=1, bitorder="little")
