"""Fifteen-bit codes of a query in two planes of bytes."""

import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.byte_lanes import WORDS
from logitsieve.kernels.simd.planes import LARGEST_CODE, encode_planes, plane_scale
from logitsieve.kernels.simd.pointers import pointer


@kernel("(float32[::1], int8[::1], int8[::1], float64[::1])")
def encode(values, high, low, out):
    scale = plane_scale(pointer(values), values.size)
    codes, squares, errors = encode_planes(
        pointer(values), scale, 0, values.size, pointer(high), pointer(low)
    )
    out[0], out[1], out[2], out[3] = scale, codes, squares, errors


def encoded(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    high, low, out = np.empty(values.size, np.int8), np.empty(values.size, np.int8), np.empty(4)
    encode(values, high, low, out)
    if WORDS:
        quads = np.stack([high.view(np.int16).reshape(-1, 2), low.view(np.int16).reshape(-1, 2)], 2)
        return quads.ravel().astype(np.int64), out
    return 128 * high.astype(np.int64) + low, out


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_codes_are_near_the_values(scale: float) -> None:
    values = (np.random.default_rng(0).standard_normal(96) * scale).astype(np.float32)
    codes, (step, total, squares, errors) = encoded(values)
    decoded = codes * step
    assert np.abs(codes).max() <= LARGEST_CODE
    assert (np.abs(decoded - values) <= 0.6 * step).all()
    assert total == codes.sum()
    assert squares == pytest.approx((decoded**2).sum(), rel=1e-12)
    assert errors == pytest.approx(((values - decoded) ** 2).sum(), rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 1e-35, 1e35, np.inf])
def test_magnitudes_without_a_scale_have_no_codes(value: float) -> None:
    codes, (step, total, squares, _) = encoded(np.full(16, value, np.float32))
    assert not codes.any()
    assert step == total == squares == 0
