import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.lanes import store
from logitsieve.kernels.simd.pointers import pointer
from logitsieve.kernels.simd.shorts import (
    LAST,
    STEPS,
    floats_of,
    load_shorts,
    shorts_of,
    start_of,
    step_of,
)

LEAST = 2e-30


@kernel("(uint16[::1], float32[::1], int32, int32)")
def loaded(codes, out, start, step):
    for place in range(0, codes.size, 16):
        store(pointer(out), place, load_shorts(pointer(codes), place, start, step))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("most", [3e-30, 1e-3, 1.0, 3e38, float(np.finfo(np.float32).max)])
def test_codes_are_near_what_they_stand_for(step: int, most: float) -> None:
    spread = 0.99 * 2.0 ** ((1 << step) * LAST / (1 << 23))
    values = np.geomspace(max(LEAST * 1.001, most / spread), most, 4096).astype(np.float32)
    start, share = start_of(values, step, LEAST), 2.0 ** (step - 24)
    for up in (True, False):
        codes = shorts_of(values, start, step, up=up)
        found = floats_of(codes, start, step)
        if up and most < 3.4e38:
            assert (found >= values).all()
            assert (found <= values.astype(np.float64) * (1 + 2 * share)).all()
        elif not up:
            assert (np.abs(found.astype(np.float64) / values - 1) <= share * 1.001)[:-1].all()
        kernels = np.empty_like(found)
        loaded.entry()(codes, kernels, start, step)
        np.testing.assert_array_equal(kernels, found)
    assert (floats_of(np.arange(LAST + 1, dtype=np.uint16), start, step) >= np.float32(LEAST)).all()
    assert np.isfinite(floats_of(np.array([LAST], np.uint16), start, step)).all()


def test_the_finer_step_and_what_is_below_all_codes() -> None:
    near, far = np.array([0.01, 1], np.float32), np.array([1e-3, 1], np.float32)
    none = np.full(2, LEAST, np.float32)
    assert step_of(iter([near, none]), LEAST) == STEPS[0]
    assert step_of(iter([near, far]), LEAST) == STEPS[1]
    values = np.array([1e-20, 1], np.float32)
    start = start_of(values, 11, LEAST)
    assert shorts_of(values, start, 11, up=True).tolist() == [0, LAST]
