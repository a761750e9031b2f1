"""log Z and its bounds, as kernels write them and as answers have them."""

import numpy as np

from logitsieve.api.results import Answer, Float32, Float64
from logitsieve.kernels.sampling.rounding import ROUNDED
from logitsieve.kernels.topk.merge import TOP, VALUE


def interval_of(fields: Float64, scale: float) -> Float64:
    """[B, 3] log Z and its bounds from TOP, VALUE, LOW and HIGH [B, 4], rounded outward."""
    base = scale * fields[:, TOP, None]
    ends = base + fields[:, VALUE:]
    off = ROUNDED * (np.abs(base) + np.abs(ends))
    return np.asarray(ends + off * np.array([0, -1, 1]))


def log_z_in(answer: Answer) -> tuple[Float32, Float32, Float32]:
    """log Z of an answer, and its bounds, which are there and hold it."""
    return in_bounds(answer.log_z, answer.log_z_low, answer.log_z_high)


def present(values: np.ndarray | None) -> np.ndarray:
    assert values is not None
    return values


def in_bounds(*interval: Float32 | None) -> tuple[Float32, Float32, Float32]:
    value, low, high = (np.asarray(each, np.float32) for each in interval if each is not None)
    assert not ((value < low) | (value > high)).any()
    return value, low, high
