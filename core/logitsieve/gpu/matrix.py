"""A frozen softmax on a GPU, and what its float32 logits may be off by.

Shape letters: V vocabulary, D hidden size.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32

# What scan.py leaves out of a product: of tf32x3 that of two remainders, each 2^-10 of its factor
# at most, and the end of one; of a half type what is left of h after two pieces of 11 or 8 bits.
DROPPED = {torch.float32: 2.0**-19, torch.float16: 2.0**-20, torch.int16: 2.0**-14}
# The tensor cores cut off what they add up, where others round: less than 2^-23 of the largest of
# up to 16 products and the sum so far. Two products for each weight need no more than this for one.
CUT_OFF = 2.0**-22


class Matrix(NamedTuple):
    """W and its bias, on one device."""

    weight: Tensor  # [V, D] float32, float16, or the bits of bfloat16 as int16
    bias: Tensor  # [V] float32
    limits: Tensor  # [4] float64: max ||w||, max |b|, slack of a row of norm 1, slack of one of 0

    @property
    def rows(self) -> int:
        """V."""
        return self.weight.shape[0]

    @property
    def dim(self) -> int:
        """D."""
        return self.weight.shape[1]


def matrix_on(device: torch.device, stored: np.ndarray, bias: Float32) -> Matrix:
    """Copy `stored` [V, D] (float32, float16, bits of bfloat16 as uint16) and `bias` there."""
    weight = on(device, stored.view(np.int16) if stored.dtype == np.uint16 else stored)
    values = weight.view(torch.bfloat16) if weight.dtype == torch.int16 else weight
    # In pieces: a float64 copy of all would be twice to four times as large as W.
    norms = [piece.double().square().sum(1).amax() for piece in torch.split(values, 4096)]
    largest = float(torch.stack(norms).amax().sqrt()) * (1 + 1e-12)
    dim = stored.shape[1]
    slack = (1.07 * dim * CUT_OFF / (1 - dim * CUT_OFF) + DROPPED[weight.dtype]) * largest
    most = float(np.abs(bias).max())
    lost = dim * 2.0**-120 * (1 + largest)  # of factors and products too small for float32
    limits = torch.tensor([largest, most, slack, lost], dtype=torch.float64)
    return Matrix(weight, on(device, bias), limits.to(device))


def on(device: torch.device, array: np.ndarray) -> Tensor:
    """A copy there; the index's arrays are mapped, and not to be written."""
    return torch.from_numpy(np.array(array)).to(device)


def device_named(name: str) -> torch.device:
    """The device that "cuda" or "cuda:1" names: the host itself under Triton's interpreter.

    InvalidRequest where there is no such GPU.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        return torch.device("cpu")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    place = name.removeprefix("cuda").removeprefix(":") or "0"
    if not name.startswith("cuda") or not place.isdecimal() or int(place) >= gpus:
        known = ", ".join(["cpu", *(f"cuda:{gpu}" for gpu in range(gpus))])
        raise InvalidRequest("device", repr(name), known)
    return torch.device("cuda", int(place))
