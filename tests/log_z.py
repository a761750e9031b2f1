"""The interval of log Z that kernels write, as two numbers."""

import numpy as np

from logitsieve.api.results import Float64
from logitsieve.kernels.sampling.rounding import ROUNDED
from logitsieve.kernels.topk.merge import TOP, VALUE


def interval_of(fields: Float64, scale: float) -> Float64:
    """[B, 3] log Z and its bounds from TOP, VALUE, LOW and HIGH [B, 4], rounded outward."""
    base = scale * fields[:, TOP, None]
    ends = base + fields[:, VALUE:]
    off = ROUNDED * (np.abs(base) + np.abs(ends))
    return np.asarray(ends + off * np.array([0, -1, 1]))
