import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.exponential import exp64_lanes, exp_lanes, sum_of_exponentials
from logitsieve.kernels.simd.lanes import LANES, load, store
from logitsieve.kernels.simd.pointers import pointer


@kernel("(float32[::1],)")
def exponentials(values):
    for i in range(0, values.size, LANES):
        store(pointer(values), i, exp_lanes(load(pointer(values), i)))


@kernel("(float64[::1],)")
def exponentials64(values):
    for i in range(0, values.size, LANES):
        store(pointer(values), i, exp64_lanes(load(pointer(values), i)))


@kernel("(float32[::1], float32, float32)")
def total(values, scale, most):
    return sum_of_exponentials(pointer(values), values.size, scale, most)


def test_exp_is_within_its_error_and_ends_at_its_least() -> None:
    x = np.linspace(-87, 0, 1 << 12).astype(np.float32)
    got = x.copy()
    exponentials(got)
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=2e-7)
    low = np.full(LANES, -np.inf, np.float32)
    exponentials(low)
    np.testing.assert_allclose(low, np.exp(-87.0), rtol=2e-7)


@pytest.mark.parametrize("scale", [1.0, 0.5, 4.0])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 1000])
def test_sums_are_numpys(size: int, scale: float) -> None:
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32) * 9
    most = np.float32(scale) * values.max()
    wanted = np.exp(scale * values.astype(np.float64) - most).sum()
    assert total(values, np.float32(scale), most) == pytest.approx(wanted, rel=3e-7)


def test_exp_in_float64_is_within_its_error_and_ends_in_zero() -> None:
    x = np.concatenate([np.linspace(-708, 0, 1 << 14), -np.geomspace(1e-300, 1, 1 << 10)])
    got = x.copy()
    exponentials64(got)
    true = np.exp(x.astype(np.longdouble))
    assert (np.abs(got - true) <= 2.0**-50 * true).all()
    nothing = np.resize([-709.0, -1e300, -np.inf, -745.0], LANES)
    exponentials64(nothing)
    assert (nothing == 0).all()
