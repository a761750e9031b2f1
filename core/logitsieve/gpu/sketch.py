"""The sketch of a matrix on a GPU: the fine codes of sketch/sketch.py, in columns of their own.

docs/certified.md derives the bound that they give, and what the GPU's own rounding adds to it.

Shape letters: V vocabulary, D hidden size, T bytes of a row in `fine`, M coordinates coded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from logitsieve.gpu.matrix import CUT_OFF, DROPPED, on
from logitsieve.kernels.sketch.sketch import EXTRA

STEP = 32  # coordinates whose products are summed in float32 before float64 takes over
LANES = 128  # or float32 sums of which each takes one product in so many


class Sketch(NamedTuple):
    """What bounds every logit from above, on one device."""

    basis: Tensor  # [D, D] float32
    codes: Tensor  # [V, T] int8: M whole numbers, then zeros
    scales: Tensor  # [V] float32
    rests: Tensor  # [V] float32
    terms: Tensor  # [7] float64, in the order of `_terms`

    @property
    def width(self) -> int:
        """T."""
        return self.codes.shape[1]

    @property
    def coded(self) -> int:
        """M."""
        return min(self.basis.shape[0], self.width - EXTRA)


def sketch_on(device: torch.device, arrays: Mapping[str, np.ndarray]) -> Sketch:
    """Copy there what bounds need of a `sketch` part whose arrays are these."""
    basis, fine = arrays["basis"], arrays["fine"]
    codes = on(device, fine).bitwise_xor_(0x80).view(torch.int8)
    codes[:, -EXTRA:] = 0
    scales, rests = fine[:, -EXTRA:].copy().view(np.float32).T
    terms = torch.tensor(_terms(basis, arrays["limits"], scales, rests), dtype=torch.float64)
    return Sketch(on(device, basis), codes, on(device, scales), on(device, rests), terms.to(device))


def _terms(
    basis: np.ndarray, limits: np.ndarray, scales: np.ndarray, rests: np.ndarray
) -> list[float]:
    """kappa, Q, left, the largest s and n; ||B||_F, and the share of it that rounding takes.

    That share times ||h|| is what coordinates may be off by, summed as rotate.py sums them and
    rounded to float32.
    """
    _, _, kappa, length, left = limits.tolist()
    many, one = STEP * CUT_OFF + DROPPED[torch.float32], -(-len(basis) // LANES) * 2.0**-24
    frobenius = float(np.linalg.norm(basis.astype(np.float64))) * (1 + 1e-9)
    most = float(scales.max()), float(rests.max())
    return [kappa, length, left, *most, frobenius, 1.01 * (max(many, one) + 2.0**-24)]
