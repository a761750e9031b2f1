"""The sketch of a matrix: an upper bound of every row's logit, from a few bytes of the row.

docs/sketch.md defines the sketch and proves the bounds. The array `coarse` [G, bytes] has F/4 times
four coordinates of each of sixteen rows, then their scales and the lengths of their tails. A
sketch's descriptor is W's, then addresses, sizes, and float64 bits.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.amx import may_use_tiles
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.pointers import float32_pointer, int32_pointer, uint8_pointer
from logitsieve.kernels.simd.shorts import floats_of
from logitsieve.kernels.sketch.levels import LEVEL_EXTRA, LEVELS, NUMBERS_IN, STEP
from logitsieve.kernels.topk.descriptor import (
    BIAS,
    LARGEST_BIAS,
    MATRIX_FIELDS,
    ROWS,
    fill_fields,
    number_at,
)

(
    DIRECTIONS, COARSE, FIRST, MIDDLE, FINE, STARTS, COARSE_WIDTH, TAIL, TAIL_WIDTH,
    KAPPA, Q, MIDDLE_Q, LAST_Q, LEFT, SIZE, MOST_SCALE, MOST_REST, MOST_TAIL, CHANCE,
    MAY_USE_TILES,
) = range(MATRIX_FIELDS, MATRIX_FIELDS + 20)  # fmt: skip
SKETCH_FIELDS = MATRIX_FIELDS + 20

SUMMED = 1 + 1e-9  # for norms in float64, summed in any order (proofs/sketch.py)
EXACT_STEPS, UNIT64 = 32, 2.0**-52  # roundings of `dot64` on top of D

Sketch = namedtuple(
    "Sketch", "rows groups coarse_width tail_width bias coarse first middle fine starts biased"
)


def norm_of(directions: np.ndarray) -> float:
    """Return an upper bound of the Frobenius norm of U."""
    exact: Float64 = directions.astype(np.float64)
    return float(np.linalg.norm(np.linalg.norm(exact, axis=1))) * SUMMED


class Widths(NamedTuple):
    coarse: int  # F
    tail: int  # T
    padded: int  # T, padded


def widths_of(arrays: Mapping[str, np.ndarray]) -> Widths:
    coarse = arrays["coarse"].shape[1] // LANES - LEVEL_EXTRA
    last = LEVELS[-1]
    padded = 8 // last.planes * (arrays[last.array].shape[1] // LANES - LEVEL_EXTRA)
    return Widths(coarse, max(0, len(arrays["directions"]) - coarse), padded)


def numbers_of(arrays: Mapping[str, np.ndarray]) -> list[Float32]:
    """Return the NUMBERS of all rows, each [G, 16]."""
    starts, step = arrays["starts"][:STEP], arrays["starts"][STEP]
    numbers: list[np.ndarray] = []
    for name in NUMBERS_IN:
        codes = arrays[name][:, -LANES * LEVEL_EXTRA :].copy().view(np.uint16)
        numbers += list(codes.reshape(-1, 2, LANES).swapaxes(0, 1))
    return [floats_of(codes, start, step) for codes, start in zip(numbers, starts, strict=True)]


def sketch_descriptor(
    softmax_descriptor: Int64, arrays: Mapping[str, np.ndarray], chance: float = 0.0
) -> Int64:
    """Return a descriptor of `arrays`, which the caller keeps alive.

    A top k may be wrong with the probability `chance`.
    """
    widths = widths_of(arrays)
    numbers = [float(each.max()) for each in numbers_of(arrays)]
    head, *scales = numbers[0::2]
    longest = np.sqrt(widths.tail), arrays["limits"][2], arrays["limits"][3]
    fields: dict[int, np.ndarray | float] = {
        DIRECTIONS: arrays["directions"],
        COARSE: arrays["coarse"],
        FIRST: arrays["first"],
        MIDDLE: arrays["middle"],
        FINE: arrays["fine"],
        STARTS: arrays["starts"],
        COARSE_WIDTH: widths.coarse,
        TAIL: widths.tail,
        TAIL_WIDTH: widths.padded,
        CHANCE: chance,
        MAY_USE_TILES: int(may_use_tiles()),
        SIZE: norm_of(arrays["directions"]),
        MOST_SCALE: head,
        MOST_REST: max(numbers[1::2]),
        MOST_TAIL: float(max(np.array(scales) * longest)),
    }
    descriptor = np.zeros(SKETCH_FIELDS, np.int64)
    descriptor[:MATRIX_FIELDS] = softmax_descriptor
    descriptor.view(np.float64)[KAPPA : LEFT + 1] = arrays["limits"]
    return fill_fields(descriptor, fields)


@inline
def sketch_at(descriptor):
    return Sketch(
        descriptor[ROWS], (descriptor[ROWS] + LANES - 1) // LANES, descriptor[COARSE_WIDTH],
        descriptor[TAIL_WIDTH], float32_pointer(descriptor[BIAS]),
        uint8_pointer(descriptor[COARSE]), uint8_pointer(descriptor[FIRST]),
        uint8_pointer(descriptor[MIDDLE]), uint8_pointer(descriptor[FINE]),
        int32_pointer(descriptor[STARTS]), number_at(descriptor, LARGEST_BIAS) > 0.0,
    )  # fmt: skip
