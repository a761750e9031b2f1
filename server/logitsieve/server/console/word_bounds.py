"""The bounds of one word's logit by a sketch, in float64: those of kernels/sketch/sketch.py.

A query is not coded here, so each bound is at most the kernel's, by a rounding of its codes.

Shape letters: D hidden size, P coordinates, F coarse and M fine ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Float64
from logitsieve.heads._base.spec import Arrays
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA

MIDDLE = 128  # the code that stands for 0


class WordBounds(NamedTuple):
    place: int  # in the sketch's order: rows that are often among the best come first
    coarse: float
    fine: float


def word_bounds(sketch: Arrays, bias: float, word: int, hidden: Float32) -> WordBounds:
    """Upper bounds of W[word] . h + bias, for a context h [D]."""
    h = hidden.astype(np.float64)
    stretched = h * sketch["stretch"]
    turned = sketch["directions"].astype(np.float64) @ h
    coordinates: Float64 = sketch["triangle"].astype(np.float64) @ turned
    outside = max(0.0, float(stretched @ stretched - turned @ turned))
    kappa, _, fine_kappa, _, left = sketch["limits"].tolist()
    reach = float(np.linalg.norm(stretched) + np.linalg.norm(turned))

    place = int(np.flatnonzero(sketch["order"] == word)[0])
    group, lane = divmod(place, LANES)
    width = sketch["coarse"].shape[1] // LANES - COARSE_EXTRA
    codes = sketch["coarse"][group, : LANES * width].reshape(-1, LANES, 4)[:, lane].ravel()
    scale, rest, _ = (
        sketch["coarse"][group, LANES * width :].view(np.float32).reshape(3, LANES)[:, lane]
    )
    fine = sketch["fine"][word]
    fine_scale, fine_rest = fine[-EXTRA:].copy().view(np.float32)

    def upper(codes: np.ndarray, scale: float, rest: float, kappa: float) -> float:
        near = np.zeros(len(codes))
        near[: len(coordinates)] = coordinates[: len(codes)]
        far = math.sqrt(float(coordinates @ coordinates - near @ near) + outside)
        estimate = scale * float((codes.astype(np.float64) - MIDDLE) @ near) + bias
        return float(estimate + scale * kappa * np.linalg.norm(near) + rest * far + left * reach)

    return WordBounds(
        place,
        upper(codes, float(scale), float(rest), kappa),
        upper(fine[:-EXTRA], float(fine_scale), float(fine_rest), fine_kappa),
    )
