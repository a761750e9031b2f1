"""The definition of an exact answer, in plain numpy: what kernels and heads are compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LANES = 16


def dot64(weight_VD: NDArray[np.float32], hidden_D: NDArray[np.float32]) -> NDArray[np.float64]:
    """[V] dots: sixteen float64 sums, element d in sum d mod 16, adjacent sums added in pairs."""
    rows, dim = weight_VD.shape
    width = -(-dim // LANES) * LANES
    products = np.zeros((rows, width))
    products[:, :dim] = weight_VD.astype(np.float64) * hidden_D.astype(np.float64)
    sums = np.zeros((rows, LANES))
    for start in range(0, width, LANES):
        sums += products[:, start : start + LANES]
    while sums.shape[1] > 1:
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums[:, 0]


def logits64(
    weight_VD: NDArray[np.float32], bias_V: NDArray[np.float32], hidden_BD: NDArray[np.float32]
) -> NDArray[np.float64]:
    """[B, V] exact logits before they are rounded to float32."""
    return np.stack([dot64(weight_VD, row) + bias_V.astype(np.float64) for row in hidden_BD])


def best(logits_BV: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """[B, k] ids of the largest, equal values by the lower id."""
    return np.argsort(-logits_BV, axis=1, kind="stable")[:, :k]
