"""A frozen softmax on a GPU: W with the error of its float32 logits, and the sketch of W.

The sketch has the fine codes of kernels/sketch/sketch.py, in columns of their own.
docs/certified.md derives their bound, and what the GPU's own rounding adds to it.

Shape letters: V vocabulary, D hidden size, T bytes of a row in `fine`, M coordinates coded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Float32
from logitsieve.gpu.device import to_device
from logitsieve.kernels.rows.decode import decoded
from logitsieve.kernels.sketch.sketch import EXTRA, SUMMED, span_of
from logitsieve.utils.stored import KINDS, StoredMatrix

# What scan.py leaves out of a product: of tf32x3 that of two remainders, each 2^-10 of its factor
# at most, and the end of one; of a half type what is left of h after two pieces of 11 or 8 bits.
DROPPED = {torch.float32: 2.0**-19, torch.float16: 2.0**-20, torch.int16: 2.0**-14}
# The tensor cores cut off what they add up, where others round: less than 2^-23 of the largest of
# up to 16 products and the sum so far. Two products for each weight need no more than this for one.
CUT_OFF = 2.0**-22
UNIT32 = 2.0**-24  # float32 rounds to this share
STEPS_SPARE = 1.27  # for each product of a float32 logit
COORDINATE_SPARE = 1.01  # of the rounding of a coordinate
UNDERFLOW = 2.0**-120  # for each product, of factors and products too small for float32


PIECE = 4096  # rows of W at a time


class Matrix(NamedTuple):
    """W and its bias, on one device."""

    weight: Tensor  # [V, D] float32, float16, or the bits of bfloat16 as int16
    bias: Tensor  # [V] float32
    limits: Tensor  # [4] float64: max ||w||, max |b|, slack of a row of norm 1, slack of one of 0

    @property
    def rows(self) -> int:
        return self.weight.shape[0]

    @property
    def dim(self) -> int:
        return self.weight.shape[1]


def matrix_on(device: torch.device, stored: np.ndarray | StoredMatrix, bias: Float32) -> Matrix:
    """Copy W [V, D] and `bias` there: floats in their type, blocks as float32.

    bfloat16 is its bits, as uint16.
    """
    matrix = StoredMatrix.of(stored)
    weight = _weight_on(device, matrix)
    values = weight.view(torch.bfloat16) if weight.dtype == torch.int16 else weight
    # In pieces: a float64 copy of all would be twice to four times as large as W.
    norms = [piece.double().square().sum(1).amax() for piece in torch.split(values, PIECE)]
    largest = float(torch.stack(norms).amax().sqrt()) * (1 + 1e-12)
    dim = matrix.dim
    slack = (STEPS_SPARE * dim * CUT_OFF / (1 - dim * CUT_OFF) + DROPPED[weight.dtype]) * largest
    most = float(np.abs(bias).max())
    lost = dim * UNDERFLOW * (1 + largest)
    limits = torch.tensor([largest, most, slack, lost], dtype=torch.float64)
    return Matrix(weight, to_device(bias, device), limits.to(device))


def _weight_on(device: torch.device, matrix: StoredMatrix) -> Tensor:
    if not KINDS[matrix.kind].blocks:
        data = matrix.data.view(np.int16) if matrix.kind == "BF16" else matrix.data
        weight: Tensor = to_device(data, device)
        return weight
    weight = torch.empty(matrix.shape, device=device)
    for start in range(0, matrix.vocab_size, PIECE):
        rows = slice(start, start + PIECE)
        weight[rows] = to_device(decoded(matrix[rows]), device)
    return weight


STEP = 32  # coordinates whose products are summed in float32 before float64 takes over
LANES = 128  # or float32 sums of which each takes one product in so many


class DeviceSketch(NamedTuple):
    """The codes that bound every logit from above, on one device."""

    directions: Tensor  # [P, D] float32
    stretch: Tensor  # [D] float32
    triangle: Tensor  # [P, P] float32
    codes: Tensor  # [V, T] int8: M whole numbers, then zeros
    scales: Tensor  # [V] float32
    rests: Tensor  # [V] float32
    # kappa, Q, left, the largest s and n; size, skew, gain and spread of sketch.SpanNorms;
    # ||U||_F; the shares of norms that products with U and with L are off by.
    terms: Tensor  # [12] float64

    @property
    def width(self) -> int:
        return self.codes.shape[1]

    @property
    def span(self) -> int:
        return self.directions.shape[0]

    @property
    def coded(self) -> int:
        return min(self.span, self.width - EXTRA)


def sketch_on(device: torch.device, arrays: Mapping[str, np.ndarray]) -> DeviceSketch:
    """Copy there what bounds need of a `sketch` part whose arrays are these."""
    directions, triangle, fine = arrays["directions"], arrays["triangle"], arrays["fine"]
    codes = to_device(fine, device).bitwise_xor_(0x80).view(torch.int8)
    codes[:, -EXTRA:] = 0
    scales, rests = fine[:, -EXTRA:].copy().view(np.float32).T
    _, _, kappa, length, left = arrays["limits"].tolist()
    span, longest = span_of(arrays), float(np.linalg.norm(directions.astype(np.float64)))
    terms = [kappa, length, left, scales.max(), rests.max()]
    terms += [span.size, span.skew, span.gain, span.spread, longest * SUMMED]
    terms += [_product_rounding(matrix.shape[1]) for matrix in (directions, triangle)]
    turning = directions, arrays["stretch"], triangle
    host: Any = *turning, codes, scales, rests, np.array(terms, np.float64)
    sketch: DeviceSketch = to_device(DeviceSketch(*host), device)
    return sketch


def _product_rounding(dim: int) -> float:
    """The share of norms that a product with a matrix is off by: see product_kernel."""
    many, one = STEP * CUT_OFF + DROPPED[torch.float32], -(-dim // LANES) * UNIT32
    return COORDINATE_SPARE * (max(many, one) + UNIT32)
