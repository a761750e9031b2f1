"""The sketch of a matrix: an upper bound of every row's logit, from a few bytes of the row.

docs/certified.md proves the bound. A context h has coordinates c = L U h, with U [P, D] and L [P,
P] lower triangular; a row w has w' with w.h = w'.c, up to the part outside the span of U. The first
F are coded in `coarse`, more of them in `fine`: codes q, a scale s, and the norm n of the rest. A
query has codes r, with g = s_h r near the first coordinates of c, and the norm rho of the rest:

    |w.h - s s_h q.r| <= s K + n rho,      K = kappa ||g|| + Q ||c - g||.

Over all rows, kappa >= e / s and Q >= p / s, with e a row's coding error and p the norm of its
coded coordinates. The rows of U, each coordinate over its `stretch`, are orthonormal up to `SKEW`.

Coarse codes [G, bytes] are ordered by how often a row is among the best: F/4 times four coordinates
of each row, then 16 s, n and biases as float32. A row in `fine` has coordinates, s and n. With
levels `fine` lies in groups too, and there is only U, any square matrix: its inverse gives w'.

A sketch's descriptor is W's, then addresses, sizes, and float64 bits.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Float64, Int64
from logitsieve.kernels.compile import inline
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.pointers import float32_pointer, int32_pointer, uint8_pointer
from logitsieve.kernels.simd.shorts import floats_of
from logitsieve.kernels.sketch.levels import LEVEL_EXTRA, NUMBERS_IN, STEP
from logitsieve.kernels.topk.descriptor import (
    BIAS,
    LARGEST_BIAS,
    MATRIX_FIELDS,
    ROWS,
    fill_fields,
    number_at,
)

(
    DIRECTIONS, STRETCH, TRIANGLE, COARSE, FINE, ORDER, SPAN, COARSE_WIDTH, FINE_WIDTH,
    KAPPA, Q, FINE_KAPPA, FINE_Q, LEFT, SIZE, SKEW, GAIN, SPREAD, MOST_SCALE, MOST_REST,
    FIRST, MIDDLE, STARTS, TAIL, TAIL_WIDTH, MOST_TAIL, CHANCE,
    ERRORS, LENGTHS, RESTS, FINE_ERRORS, FINE_LENGTHS, FINE_RESTS,
) = range(MATRIX_FIELDS, MATRIX_FIELDS + 33)  # fmt: skip
SKETCH_FIELDS = MATRIX_FIELDS + 33
MIDDLE_Q, LAST_Q = FINE_KAPPA, FINE_Q  # with levels `limits` holds these instead

EXTRA = 8  # bytes of a row in `fine` after its codes: s and n
COARSE_EXTRA = 12  # and in `coarse`: s, n and its bias

SUMMED = 1 + 1e-9  # of norms in float64, summed in any order: proofs/certified.py
EXACT_STEPS, UNIT64 = 32, 2.0**-52  # roundings of `dot64` on top of D

# `plane`: bytes of each of a query's two planes of eight-bit codes.
Sketch = namedtuple(
    "Sketch",
    "rows groups coarse_width group_bytes fine_width plane bias coarse first middle fine order"
    " tail_width starts biased",
)


class SpanNorms(NamedTuple):
    """Float64 norms of U and L, not below the true ones; with levels L is absent."""

    directions: Float64  # [P, D], each coordinate over its stretch
    size: float  # their Frobenius norm
    skew: float  # >= ||directions directions^T - I||
    gain: float  # the Frobenius norm of the triangle
    spread: float  # the norm of |triangle| times max(1, the norm of each direction)


def span_of(arrays: Mapping[str, np.ndarray]) -> SpanNorms:
    directions = arrays["directions"].astype(np.float64)
    if "triangle" not in arrays:
        size = float(np.linalg.norm(np.linalg.norm(directions, axis=1))) * SUMMED
        return SpanNorms(directions, size, 0.0, size, size)
    directions /= arrays["stretch"].astype(np.float64)
    triangle, (count, dim) = np.abs(arrays["triangle"].astype(np.float64)), directions.shape
    norms = np.linalg.norm(directions, axis=1)
    size = float(np.linalg.norm(norms)) * SUMMED
    skewed = np.linalg.norm(directions @ directions.T - np.eye(count), axis=1)
    skew = float(np.linalg.norm(skewed)) * SUMMED
    skew += (dim + EXACT_STEPS) * UNIT64 * size * size
    gain = float(np.linalg.norm(np.linalg.norm(triangle, axis=1))) * SUMMED
    spread = float(np.linalg.norm(triangle @ np.maximum(norms, 1))) * SUMMED
    return SpanNorms(directions, size, skew, gain, spread)


class Coded(NamedTuple):
    coarse: int  # in eight bits
    tail: int  # T; 0 without levels
    padded: int  # T padded to whole quanta


def widths_of(arrays: Mapping[str, np.ndarray]) -> Coded:
    size = arrays["coarse"].shape[1] // LANES
    if "middle" not in arrays:
        return Coded(size - COARSE_EXTRA, 0, 0)
    padded = 4 * (arrays["fine"].shape[1] // LANES - LEVEL_EXTRA)
    coarse = size - LEVEL_EXTRA
    return Coded(coarse, len(arrays["directions"]) - coarse, padded)


def numbers_of(arrays: Mapping[str, np.ndarray]) -> list[Float32]:
    """Return the NUMBERS of each row by levels, [G, 16]."""
    starts, step = arrays["starts"][:STEP], arrays["starts"][STEP]
    numbers: list[np.ndarray] = []
    for name in NUMBERS_IN:
        codes = arrays[name][:, -LANES * LEVEL_EXTRA :].copy().view(np.uint16)
        numbers += list(codes.reshape(-1, 2, LANES).swapaxes(0, 1))
    return [floats_of(codes, start, step) for codes, start in zip(numbers, starts, strict=True)]


def sketch_descriptor(
    softmax_descriptor: Int64, arrays: Mapping[str, np.ndarray], chance: float = 0.0
) -> Int64:
    """Return the descriptor of a sketch part's arrays, which the caller keeps alive.

    With levels, a top k may be wrong with the probability `chance`.
    """
    coarse, fine = arrays["coarse"], arrays["fine"]
    widths, span = widths_of(arrays), span_of(arrays)
    fields: dict[int, np.ndarray | float] = {
        DIRECTIONS: arrays["directions"],
        COARSE: coarse,
        FINE: fine,
        ORDER: arrays["order"],
        SPAN: len(span.directions),
        COARSE_WIDTH: widths.coarse,
        FINE_WIDTH: fine.shape[1] // (LANES if widths.tail else 1),
        TAIL: widths.tail,
        TAIL_WIDTH: widths.padded,
        CHANCE: chance,
        SIZE: span.size,
        SKEW: span.skew,
        GAIN: span.gain,
        SPREAD: span.spread,
    }
    if widths.tail:
        numbers = [float(each.max()) for each in numbers_of(arrays)]
        head, *scales = numbers[0::2]
        longest = np.sqrt(widths.tail), arrays["limits"][2], arrays["limits"][3]
        fields |= {
            FIRST: arrays["first"],
            MIDDLE: arrays["middle"],
            STARTS: arrays["starts"],
            MOST_SCALE: head,
            MOST_REST: max(numbers[1::2]),
            MOST_TAIL: float(max(np.array(scales) * longest)),
        }
    else:
        # The largest scale and norm of `coarse`, and of a row of `fine`.
        extras = coarse[:, -LANES * COARSE_EXTRA :].copy().view(np.float32)
        first = extras.reshape(len(coarse), -1, LANES).max(axis=(0, 2))
        last = fine[:, -EXTRA:].copy().view(np.float32).max(axis=0)
        fields[MOST_SCALE], fields[MOST_REST] = np.maximum(first[:2], last).tolist()
        fields |= {STRETCH: arrays["stretch"], TRIANGLE: arrays["triangle"]}
    descriptor = np.zeros(SKETCH_FIELDS, np.int64)
    descriptor[:MATRIX_FIELDS], numbers = softmax_descriptor, descriptor.view(np.float64)
    numbers[KAPPA : LEFT + 1] = arrays["limits"]
    if not widths.tail:
        numbers[ERRORS:] = arrays["norms"]
    return fill_fields(descriptor, fields)


@inline
def sketch_at(descriptor):
    return Sketch(
        descriptor[ROWS], (descriptor[ROWS] + LANES - 1) // LANES, descriptor[COARSE_WIDTH],
        group_bytes(descriptor), descriptor[FINE_WIDTH], plane_bytes(descriptor),
        float32_pointer(descriptor[BIAS]), uint8_pointer(descriptor[COARSE]),
        uint8_pointer(descriptor[FIRST]), uint8_pointer(descriptor[MIDDLE]),
        uint8_pointer(descriptor[FINE]), int32_pointer(descriptor[ORDER]),
        descriptor[TAIL_WIDTH], int32_pointer(descriptor[STARTS]),
        number_at(descriptor, LARGEST_BIAS) > 0.0,
    )  # fmt: skip


@inline
def group_bytes(descriptor):
    extra = LEVEL_EXTRA if descriptor[TAIL_WIDTH] > 0 else COARSE_EXTRA
    return LANES * (descriptor[COARSE_WIDTH] + extra)


@inline
def plane_bytes(descriptor):
    return descriptor[COARSE_WIDTH] if descriptor[TAIL_WIDTH] > 0 else descriptor[FINE_WIDTH]
